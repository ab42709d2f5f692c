"""What is written: every prompt once per temperature, each with a seed of its own that others do not change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dartspec.services.common.errors import InvalidArgument, NotFound
from dartspec.services.draft.texts.leaks import LeakCheck
from dartspec.services.draft.texts.plan import Job, choose_prompts, plan
from dartspec.services.draft.texts.prompts import Prompt, read_prompts

PROMPTS = [Prompt.user(f"question {i}") for i in range(20)]


def named(jobs: list[Job]) -> dict[tuple[str, float], int]:
    return {(job.prompt.key, job.temperature): job.seed for job in jobs}


def test_every_pair_has_a_text_and_a_seed_of_its_own() -> None:
    jobs = plan(PROMPTS, (0.0, 0.8), seed=1)
    assert [job.index for job in jobs] == list(range(40))
    assert len(named(jobs)) == len({job.seed for job in jobs}) == 40
    assert all(0 <= job.seed < 2**64 for job in jobs)
    order = [job.prompt for job in jobs]
    assert order[:20] != sorted(order[:20], key=lambda prompt: prompt.key)  # mixed, so that shards are alike
    assert jobs == plan(list(reversed(PROMPTS)), (0.8, 0.0), seed=1)
    assert not set(named(jobs).values()) & set(named(plan(PROMPTS, (0.0, 0.8), seed=2)).values())


def test_other_prompts_change_no_text() -> None:
    all_of_them = named(plan(PROMPTS, (0.8,), seed=1))
    fewer = named(plan(PROMPTS[::2], (0.8,), seed=1))
    assert fewer.items() <= all_of_them.items()


def test_equal_prompts_are_written_with_different_seeds() -> None:
    jobs = plan([Prompt(token_ids=(1, 2))] * 5, (0.8,), seed=0)
    assert len({job.seed for job in jobs}) == 5


def test_repetitions_and_leaks_are_counted_once_each() -> None:
    prompts = [Prompt.user(text) for text in ("keep me", "an evaluation prompt of five", "keep me", "keep me")]
    chosen = choose_prompts([*prompts, prompts[1]], LeakCheck(["An evaluation prompt of five"]))
    assert chosen.prompts == [Prompt.user("keep me")]
    assert chosen.duplicates == 3
    assert chosen.leaks == ["equal"]


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_prompt_files_of_every_form(tmp_path: Path) -> None:
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}
    file = write(tmp_path / "p.jsonl", {"prompt": "one"}, {"turns": ["two", "later"]}, {"messages": [system, user]})
    assert read_prompts([file], plain=False) == [
        Prompt.user("one"),
        Prompt.user("two"),
        Prompt(messages=(("system", "Be brief."), ("user", "Hello?"))),
    ]
    plain = write(tmp_path / "q.jsonl", {"prompt": "one"}, {"turns": ["two", "later"]})
    assert read_prompts([plain, plain], plain=True) == [Prompt(text="one"), Prompt(text="two")] * 2


@pytest.mark.parametrize(
    ("record", "plain", "message"),
    [
        ({"text": "x"}, False, "line 2: has neither 'messages' nor 'turns' nor 'prompt' with text"),
        ({"prompt": "  "}, False, "line 2: has neither"),
        ({"turns": []}, False, "line 2: has neither"),
        ({"messages": [{"role": "user"}]}, False, "line 2: 'messages' is no list of objects with 'role' and 'content'"),
        ({"messages": []}, False, "line 2: 'messages' is empty"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, False, "line 2: the last message is the assistant's"),
        ({"messages": [{"role": "user", "content": "a"}]}, True, "line 2: --plain takes 'prompt' or 'turns'"),
        ("text", False, "line 2: not a JSON object but str"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, record: object, plain: bool, message: str) -> None:
    file = write(tmp_path / "p.jsonl", {"prompt": "fine"}, record)
    with pytest.raises(InvalidArgument, match=message):
        read_prompts([file], plain)
    with pytest.raises(NotFound, match="absent"):
        read_prompts([tmp_path / "absent.jsonl"], plain)
