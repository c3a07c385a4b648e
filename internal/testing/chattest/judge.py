"""Renders templates as transformers does: one JSON object a line in, one a line out.

A request has "source" and "vars" for a template alone, or "template", "messages" and "kw" for
a chat. The answer has "text", or "error" and, for raise_exception, "raised".
"""

import datetime
import json
import signal
import sys

import jinja2
from transformers.utils import chat_template_utils as utils


class FixedClock(datetime.datetime):
    """The clock of the tests: strftime_now must give the same here and there."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 2, 3, 14, 5, 9)


class Slow(Exception):
    pass


def too_slow(signum, frame):
    raise Slow("slow")


def answer(request):
    if "source" in request:
        template = utils._compile_jinja_template(request["source"])
        return template.render(**request["vars"])
    rendered, _ = utils.render_jinja_template(
        conversations=[request["messages"]],
        chat_template=request["template"],
        **request["kw"],
    )
    return rendered[0]


def main():
    utils.datetime = FixedClock
    signal.signal(signal.SIGALRM, too_slow)
    templates = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "define" in request:
            templates[request["define"]] = request["text"]
            continue
        for field in ("source", "template"):
            if isinstance(request.get(field), dict):
                request[field] = templates[request[field]["ref"]]
        signal.alarm(10)
        try:
            out = {"text": answer(request)}
        except jinja2.exceptions.TemplateError as e:
            out = {"error": f"{type(e).__name__}: {e}", "raised": type(e) is jinja2.exceptions.TemplateError}
        except Exception as e:
            out = {"error": f"{type(e).__name__}: {e}"}
        finally:
            signal.alarm(0)
        sys.stdout.write(json.dumps(out) + "\n")
        sys.stdout.flush()


main()
