from batchwright import Policy, hookimpl


class Chat(Policy):
    """Decodes first, a token each; prompts are cut to what is left of the step's budget."""

    @hookimpl
    def admission(self, step):
        yield step.decodes
        yield step.prefilling
        for request in step.waiting:
            yield request
            if not request.num_scheduled:  # it does not fit now, and nobody overtakes it
                break
