"""The named checks. Each raises ``Failed`` with what was expected and what the policy did, or ``Skipped``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batchwright.need import Need
from batchwright.policy import Policy
from batchwright.testing.kit import Kit
from batchwright.testing.report import Failed, Skipped, Unreached
from batchwright.testing.run import Run
from batchwright.testing.watch import Fault

Check = Callable[[Kit], None]
CHECKS: dict[str, Check] = {}
"""Name to check, in the order of running."""


def check(function: Check) -> Check:
    """Register a check under its name."""
    CHECKS[function.__name__] = function
    return function


def describe(name: str) -> str:
    """What a check is about, in one line."""
    return (CHECKS[name].__doc__ or "").partition("\n")[0]


def _no_faults(kit: Kit, name: str, expected: str, *runs: Run) -> None:
    """No fault is this check's; ``runs`` are those that it is about, where they say enough of it."""
    faults = kit.blame.get(name)
    if faults:
        raise _failed(expected, faults[0])
    if runs:
        need_runs(kit, runs)


def _failed(expected: str, fault: Fault) -> Failed:
    hook = f"{fault.hook}: " if fault.hook else ""
    queues = f" ({fault.num_waiting} waiting, {fault.num_resident} resident)" if fault.hook else ""
    did = {"raised": "raised ", "observer": "raised "}.get(fault.rule, "")
    return Failed(f"expected {expected}; {hook}{did}{fault.message}{queues}", fault.scenario, fault.step)


@check
def answers(kit: Kit) -> None:
    """Every hook answers with a value of its type, and none raises: decisions and observers."""
    expected = "every hook to answer with a value of its type and to raise nothing"
    _no_faults(kit, "answers", expected, *kit.roomy, *kit.tight)


@check
def no_mutation(kit: Kit) -> None:
    """No hook alters what it is shown: lists and numbers of the step, queues, requests."""
    if kit.mutations:
        m = kit.mutations[0]
        raise Failed(
            f"expected {m.hook} to leave the view as it was; it changed {m.what} from {m.before} to {m.after}: copy "
            "what you want to alter",
            m.scenario,
            m.step,
        )
    for fault in (f for run in kit.strict for f in run.faults if f.error == "Written"):
        message = fault.message.removeprefix("Written: ")
        raise Failed(f"expected {fault.hook} to leave the view as it was; {message}", fault.scenario, fault.step)
    need_runs(kit, kit.thorough)


@check
def budgets(kit: Kit) -> None:
    """Chunking and reservation stay within what is pending and what is left of the budget."""
    expected = "chunking of 0 to min(pending, step.budget) tokens and reservations of at least 0"
    _no_faults(kit, "budgets", expected, *kit.roomy, *kit.tight)


@check
def offers(kit: Kit) -> None:
    """Admission offers each request once, and only requests that are here; and it ends."""
    _no_faults(kit, "offers", "admission to offer unfinished requests of this engine, each once a step", *kit.roomy)


@check
def progress(kit: Kit) -> None:
    """Every accepted request ends, and no step is empty while somebody could run."""
    expected = "a step that schedules somebody, and an end of every accepted request"
    _no_faults(kit, "progress", expected)
    runs = [*kit.roomy, *kit.tight]
    if runs and not any(run.decisions for run in runs):
        run = runs[0]
        reason = next(iter(run.refused.values()), "no reason")
        if run.refused:
            raise Failed(
                f"expected some requests to be taken; all of {len(runs)} workloads were refused ({reason}): check it "
                "with parameters under which it takes some",
                run.scenario.name,
            )
    need_runs(kit, runs)


@check
def exhaustion(kit: Kit) -> None:
    """With hardly a block to spare: legal victims, nobody stranded, no evicting in circles."""
    expected = "victims that hold blocks, and an end of every request where blocks run out"
    _no_faults(kit, "exhaustion", expected, *kit.tight)


@check
def empty(kit: Kit) -> None:
    """It works while nobody waits, while nobody is resident, and while nobody is here at all."""
    _no_faults(kit, "empty", "the hook to work while a queue is empty", *kit.roomy, *kit.tight)


@check
def aborts(kit: Kit) -> None:
    """Requests may be aborted at any moment; who ended is not offered, evicted or counted on."""
    _no_faults(kit, "aborts", "aborted requests to be forgotten (see request_finished)", *kit.aborts)


@check
def hot_swap(kit: Kit) -> None:
    """It takes over a live engine, also a second time: its state comes from policy_attached and the observers."""
    expected = "the policy to take over a live engine, also a second time (policy_attached builds its state)"
    _no_faults(kit, "hot_swap", expected, *kit.swaps)


@check
def declarations(kit: Kit) -> None:
    """What it declares is true: chunks, preemptive, reserves_all, uses_predict, defaults, and what its card says."""
    from batchwright.card import card_of, place_of
    from batchwright.config import EngineConfig
    from batchwright.effective import effective_settings

    for policy in kit.subject.policies():
        for name, value in vars(Policy).items():
            if isinstance(value, bool) and not isinstance(getattr(policy, name), bool):
                raise Failed(f"expected {name} to be True or False; it is {getattr(policy, name)!r}")
        for need in policy.needs:
            if not isinstance(need, Need):
                raise Failed(f"expected needs to hold batchwright.Need objects; {need!r} is none")
        found = card_of(type(policy))
        for rule, where in found[0].rules.items() if found is not None else ():
            if place_of(type(policy), where) is None:
                raise Failed(
                    f"expected its card to say where each rule is; {rule!r} is said to be in {where!r}, which is not"
                )
    try:
        effective_settings(EngineConfig(), kit.subject.make())
    except Exception as error:
        raise Failed(f"expected defaults() to name settings with valid values; {error}") from None
    _no_faults(kit, "declarations", "uses_predict = True of a policy that asks step.predict_s")
    slots = kit.subject.make().slots
    if "preemption" in slots and not slots["preemption"].preemptive:
        _keeps(kit, "preemptive = False", "preemption to evict nobody for a request that waits; it named a victim")
    if "reservation" in slots and slots["reservation"].reserves_all:
        _keeps(
            kit, "reserves_all = True", "reservation to be of prompt + max_tokens - 1 tokens at least; it was of less"
        )
    if not kit.chunks:
        for run in (*kit.roomy, *kit.tight):
            for decision in run.decisions:
                if decision.cut:
                    raise Failed(
                        f"expected no prompt to be cut, since chunks is False; request {decision.cut[0]!r} was",
                        run.scenario.name,
                        decision.step,
                    )
    need_runs(kit, (*kit.roomy, *kit.tight))


def _keeps(kit: Kit, declared: str, expected: str) -> None:
    if declared in kit.broken:
        raise Failed(f"it declares {declared}: expected {expected}", *kit.broken[declared])


def same(expected: str, one: Run, other: Run, upto: int | None = None) -> None:
    """Hold two runs to the same decisions.

    Args:
        expected: what they have in common, for the sentence.
        one: a run.
        other: the run beside it.
        upto: how many steps are compared; None: all.

    Raises:
        Failed: the first step in which they part.
    """
    pairs = list(zip(one.decisions, other.decisions, strict=False))[:upto]
    for a, b in pairs:
        if a.choice != b.choice:
            raise Failed(f"expected {expected}; once {a.describe()}, then {b.describe()}", one.scenario.name, a.step)
    if one.refused != other.refused and upto is None:
        name = min(one.refused.keys() ^ other.refused.keys() or one.refused.keys())
        raise Failed(f"expected {expected}; request {name!r} was refused once", one.scenario.name)
    if len(one.decisions) != len(other.decisions) and upto is None:
        raise Failed(
            f"expected {expected}; once {len(one.decisions)} steps, then {len(other.decisions)}",
            one.scenario.name,
            len(pairs),
        )


def need_runs(kit: Kit, runs: Sequence[Run]) -> None:
    """Nothing is said of a policy none of whose runs came to its end.

    Raises:
        Unreached: each run ended early, or took nobody in; the message says what to mend first.
        Failed: each run ended early, by a fault that no other check meets.
    """
    if any(run.is_complete and run.decisions for run in runs):
        return
    faults = [fault for run in runs for fault in run.faults]
    if faults and not kit.culprits:
        raise _failed("no fault here either", faults[0])
    first = kit.culprits or "progress"  # nobody was taken in
    raise Unreached(f"a fault ended each run early, or kept everybody out; mend this first: {first}")


def need_steps(number: int, what: str) -> None:
    """Skip where there was nothing to compare."""
    if not number:
        raise Skipped(f"there was no step to compare ({what})")
