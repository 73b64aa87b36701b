from batchwright import Policy, hookimpl


class Chat(Policy):
    """Prompts first, so that everybody gets a first token soon; decodes run when no prompt did."""

    @hookimpl
    def admission(self, step):
        yield step.prefilling
        for request in step.waiting:
            yield request
            if not request.num_scheduled:  # it does not fit now, and nobody overtakes it
                break
        if not step.batch:
            yield step.decodes
