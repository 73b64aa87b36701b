from batchwright import Ranked


class ShortFirst(Ranked):
    """The shortest prompt first."""

    def rank(self, request):
        return request.num_prompt_tokens
