"""How a refusal must read."""

from dspark.engine.errors import DsparkError


def assert_reads_well(error: DsparkError) -> None:
    """A message that fits behind `dspark: ` and into other sentences; a remedy that is a sentence."""
    message, remedy = str(error), error.remedy
    assert message and not message.endswith((".", "!")) and "\n" not in message, message
    assert remedy[:1].isupper() and remedy.endswith("."), f"{message}: {remedy!r}"
