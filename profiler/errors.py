"""Every error teraio raises on purpose, with the exit code its command ends with.

TeraioError
 ├─ InputMissingError      66   a file that was named is not there
 ├─ BadInputError          65   a file is empty, truncated, of another kind or too new
 ├─ NothingRecordedError   70   the script ended before one complete step
 ├─ InfeasibleError        69   no plan exists under the budget
 ├─ SolverMissingError     69   a policy needs a solver and none is installed
 ├─ PackageMissingError    69   an option needs a package that is not installed
 ├─ OutputExistsError      73   an output exists and --force was not given
 ├─ StorageError           74   an SSD folder or a transfer failed
 │   └─ StuckError         74   a request to a drive does not come back
 ├─ DivergedError          76   under --strict: the program is not the planned one
 └─ VerificationError      77   --verify found a difference

Usage errors (an unknown option or unit) end with 2, as in every Typer program; a failing
script ends with its own code, and a signal with 128 + its number. The codes are those of
sysexits.h where one fits.
"""

from __future__ import annotations

from typing import ClassVar


class TeraioError(Exception):
    """Something teraio can explain: what happened and, in `hint`, what to do about it."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(TeraioError):
    """An argument cannot be understood."""

    exit_code = 2


class InputMissingError(TeraioError):
    """A file that was named is not there."""

    exit_code = 66


class BadInputError(TeraioError):
    """A file is empty, truncated, of another kind or of a newer format."""

    exit_code = 65


class NothingRecordedError(TeraioError):
    """The script ended before one complete step could be recorded."""

    exit_code = 70


class InfeasibleError(TeraioError):
    """No plan exists under the budget.

    `least_bytes` is the device memory from which on there is one, None if that is not known. With
    `is_floor` there is none below it, and there may be none with it.
    """

    exit_code = 69

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        least_bytes: int | None = None,
        is_floor: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.least_bytes = least_bytes
        self.is_floor = is_floor


class SolverMissingError(TeraioError):
    """No solver for linear programs is installed.

    A policy that can do without one gives its plan all the same; the command that asked for it
    then ends with this code.
    """

    exit_code = 69


class PackageMissingError(TeraioError):
    """A package that an option needs is not installed."""

    exit_code = 69


class OutputExistsError(TeraioError):
    """An output exists already and may not be replaced."""

    exit_code = 73


class StorageError(TeraioError):
    """An SSD folder cannot be used, or a transfer failed."""

    exit_code = 74


class StuckError(StorageError):
    """A request to a drive does not come back.

    A thread waits for it in the system, so that the process cannot end as others do.
    """


class DivergedError(TeraioError):
    """The running program is not the one that was planned for."""

    exit_code = 76


class VerificationError(TeraioError):
    """Bytes or gradients differ from those of a run without offload."""

    exit_code = 77
