"""`dartspec draft generate` as a process that is interrupted and killed, with a real engine on a tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dartspec.cli.main import main
from dartspec.services.draft.texts.store import JOURNAL, part_paths, read_records
from tests.toy import CHAT_TEMPLATE, byte_tokenizer

ANSWERS = 2 * 30
PER_SHARD = 12
LATEST = 600.0  # a run that says nothing for so long hangs


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of a run over a random model with two layers and no head."""
    directory = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    backend = byte_tokenizer()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    tokenizer.chat_template = CHAT_TEMPLATE
    config = LlamaConfig(
        vocab_size=backend.get_vocab_size(with_added_tokens=True),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        eos_token_id=backend.token_to_id("<eos>"),
        bos_token_id=None,
        tie_word_embeddings=False,
        initializer_range=0.5,
    )
    LlamaForCausalLM(config).save_pretrained(directory / "model")
    tokenizer.save_pretrained(directory / "model")
    prompts = directory / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"number {i}"}) + "\n" for i in range(30)))
    run = [
        "draft",
        "generate",
        "--model",
        str(directory / "model"),
        "--prompts",
        str(prompts),
        "--shard",
        str(PER_SHARD),
    ]
    limits = ["--max-new", "6", "--rows", "4", "--dtype", "float32", "--threads", "1"]
    return [*run, *limits, "--temperature", "0", "--temperature", "0.8"]


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def finished(out: Path) -> int:
    return PER_SHARD * len(part_paths(out)) + lines(out / JOURNAL)


def wait_for(out: Path, texts: int) -> None:
    until = time.monotonic() + LATEST
    while finished(out) < texts and time.monotonic() < until:
        time.sleep(0.005)


def killed_after(options: list[str], texts: int) -> int:
    """Exit code of a process that is killed when so many texts are finished."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dartspec.cli.main", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(Path(options[-1]), texts)
    process.kill()
    return process.wait()


def interrupted_after(options: list[str], texts: int) -> int:
    """Exit code of a run in this process that gets Ctrl-C when so many texts are finished."""

    def interrupt() -> None:
        wait_for(Path(options[-1]), texts)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        return main(options)
    finally:
        thread.join()


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_killed_and_interrupted_runs_end_in_the_files_of_an_undisturbed_one(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = [*options, "--out", str(tmp_path / "killed")]
    assert killed_after(killed, PER_SHARD + 2) == -signal.SIGKILL
    before = finished(tmp_path / "killed")
    assert PER_SHARD < before < ANSWERS
    assert interrupted_after(killed, before + 4) == 130
    assert "interrupted; the same command goes on where it was" in capsys.readouterr().err
    assert before < finished(tmp_path / "killed") < ANSWERS
    assert main(killed) == 0
    assert main([*options, "--out", str(tmp_path / "whole")]) == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    records = [record for path in part_paths(tmp_path / "killed") for record in read_records(path)]
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len({record["i"] for record in records}) == len(records) == ANSWERS - result["dropped"]["duplicates"]
    assert all(record["o"] for record in records)


def test_wrong_use_is_one_line_and_exit_code_2(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options, "--out", str(tmp_path), "--temperature", "101"]) == 2
    assert "got 101" in capsys.readouterr().err
    assert main([*options, "--out", str(tmp_path), "--model", "no-such-model"]) == 2
    assert "'no-such-model'" in capsys.readouterr().err


def test_leaks_in_texts_are_found_afterwards(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = options[options.index("--model") + 1]
    foreign, exclude = tmp_path / "foreign.jsonl", tmp_path / "exclude.jsonl"
    foreign.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("hello out there all", "hello again")))
    out = ["--out", str(tmp_path / "texts")]
    assert main(["draft", "generate", "--model", model, "--foreign", str(foreign), *out]) == 0
    check = ["draft", "check-leaks", "--model", model, "--text", str(tmp_path / "texts"), "--exclude", str(exclude)]
    exclude.write_text(json.dumps({"prompt": "Out there, in all of it"}) + "\n")
    assert main(check) == 0
    exclude.write_text(json.dumps({"prompt": "Hello out there ALL!"}) + "\n")  # its first token is the prompt
    assert main(check) == 1
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == {"texts": 2, "evaluation_prompts": 1, "leaks": {"equal": 1, "contains": 0, "shares": 0}}
