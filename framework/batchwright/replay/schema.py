"""One line of a file of cases, and how its errors read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from batchwright.errors import CasesError


class Strict(BaseModel):
    """Base of what a file holds: unknown keys are refused, and a number is a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Ids = list[Count]
Tokens = Annotated[list[Count], Field(min_length=1)]

T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file of cases.

    Attributes:
        file: path, for errors.
        number: from 1.
        text: its JSON.
        data: the object it holds.
    """

    file: str
    number: int
    text: str
    data: dict[str, Any]

    def error(self, message: str) -> CasesError:
        """An error that says where."""
        return CasesError(f"{self.file}, line {self.number}: {message}")

    def parse(self, model: type[T]) -> T:
        """Check the object.

        Raises:
            CasesError: it is not of this form; names file, line and field.
        """
        try:
            return model.model_validate_json(
                self.text
            )  # not of ``data``: JSON has no tuples, and strict mode wants them
        except ValidationError as error:
            first, *others = error.errors()
            where = ".".join(str(part) for part in first["loc"])
            more = f" (and {len(others)} more)" if others else ""
            value = repr(first["input"])
            value = value if len(value) <= 60 else value[:57] + "..."
            raise self.error(f"{where} is {value}: {first['msg']}{more}") from None

    def check_ids(self, ids: Sequence[object]) -> None:
        """No two requests may share an id.

        Raises:
            CasesError: two do.
        """
        twice = [i for i, count in Counter(ids).items() if count > 1]
        if twice:
            raise self.error(f"requests: two have id {twice[0]!r}")
