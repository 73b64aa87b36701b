from batchwright import Ranked


class ShortFirst(Ranked):
    """The shortest prompt first, and each second of waiting makes up for two tokens."""

    ageing = 2.0

    def rank(self, request):
        return request.num_prompt_tokens + self.ageing * request.arrival_s
