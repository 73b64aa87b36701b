from batchwright import Policy, hookimpl


class Memory(Policy):
    """Takes blocks chunk by chunk: none is held before it is needed."""

    @hookimpl
    def reservation(self, step, request):
        return 0
