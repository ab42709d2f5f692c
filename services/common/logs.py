"""What a service logs, on stderr: lines for people, or one JSON object a line. Never what users wrote."""

from __future__ import annotations

import datetime
import json
import logging
import sys

FORMATS = ("text", "json")
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

# What every record has; the rest came with `extra`.
_ORDINARY = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """time (UTC), level, logger, message, what came with ``extra`` (such as request_id), and error with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _ORDINARY},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def set_up_logs(level: str, format: str) -> None:
    """For a whole process. Levels: debug, info, warning, error. Formats: text, json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("grpc").setLevel(max(logging.INFO, logging.getLogger().level))  # tells of its event loop all day
