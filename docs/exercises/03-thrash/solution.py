from batchwright import Policy, hookimpl


class Memory(Policy):
    """Takes the blocks of the whole prompt when it begins, and those of the answer as it grows."""

    @hookimpl
    def reservation(self, step, request):
        return request.num_tokens
