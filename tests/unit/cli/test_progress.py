"""Lines about tasks, and what comes after they are gone."""

from __future__ import annotations

import io

from dartspec.cli.progress import Progress


async def test_words_about_a_task_that_is_gone_are_dropped():
    output = io.StringIO()
    progress = Progress(output)
    async with progress:
        progress.start("verifier")
        progress.note("verifier", "loading")
    progress.note("verifier", "stopping")
    progress.done("verifier")
    progress.failed("verifier")
    assert output.getvalue() == "verifier: starting\nverifier: loading\n"
