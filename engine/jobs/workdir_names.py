"""The work directory unless another is named, and what the commands call what they leave in it for each other."""

from pathlib import Path

DEFAULT_WORKDIR = Path("dspark-out")
PROFILE, PROFILE_PICTURE = "profile.json", "profile.png"
CALIBRATION, TRACES = "calibration.json", "traces.parquet"
PARTIAL_TRACES = "traces.partial.parquet"  # of a calibration that did not finish
DECODED, DECODE_METRICS = "decode.jsonl", "decode.metrics.json"
# Folders.
EXPORT, REPORT = "export", "report"
