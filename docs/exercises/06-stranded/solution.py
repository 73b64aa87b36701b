from batchwright import HOLD, Policy, hookimpl


class Urgent(Policy):
    """The lowest priority number first; once a newcomer finds no room, only residents go on."""

    @hookimpl
    def admission(self, step):
        is_blocked = False
        for request in sorted((*step.running, *step.waiting), key=lambda r: r.priority):
            if is_blocked and request.is_waiting:
                continue
            yield request
            is_blocked = is_blocked or (request.is_waiting and not request.num_scheduled)

    @hookimpl
    def preemption(self, step, request):
        return HOLD if request.is_waiting else request
