"""What a call can raise."""

from schemas.api import Problem


class SendloomError(Exception):
    """The API refused. `code` is stable (docs/errors.md); `fix` says what to do."""

    def __init__(self, problem: Problem, retry_after: float | None = None) -> None:
        super().__init__(f"{problem.code}: {problem.detail} {problem.fix}".rstrip())
        self.problem = problem
        self.code = problem.code
        self.status = problem.status
        self.detail = problem.detail
        self.field = problem.field
        self.fix = problem.fix
        self.retry_after = retry_after


class SendloomUnreachable(SendloomError):
    """No answer came, also after retries. What was asked may have happened: repeat it with the same key."""

    def __init__(self, why: str) -> None:
        super().__init__(
            Problem(
                type="about:blank",
                title="No answer",
                status=0,
                code="unreachable",
                detail=why,
                fix="Is the API running, and is the address right? Repeat with the same key.",
            )
        )
