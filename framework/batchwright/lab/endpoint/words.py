"""Prompts as text, for servers that take no token ids: one common word for each token id."""

from __future__ import annotations

from collections.abc import Iterable

_LIST = """
the of and to in is that it was for on are as with his they at be this from have or by one had not but what all were
when we there can an your which their said if do will each about how up out them then she many some so these would
other into has more her two like him see time could no make than first been its who now people my made over did down
only way find use may water long little very after words called just where most know get through back much before go
good new write our used me man too any day same right look think also around another came come work three word must
because does part even place well such here take why things help put years different away again off went old number
great tell men say small every found still between name should home big give air line set own under read last never
us left end along while might next sound below saw something thought both few those always looked show large often
together asked house world going want
"""

WORDS = tuple(_LIST.split())
"""Short words that most tokenizers know, with the space in front of them, as one token."""


def as_text(token_ids: Iterable[int]) -> str:
    """One word for each id: equal prefixes of ids give equal prefixes of text."""
    return " ".join(WORDS[token % len(WORDS)] for token in token_ids)
