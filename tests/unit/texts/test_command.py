"""`dartspec draft generate` as a process that is interrupted and killed, with a real engine on a tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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
LATEST = 120.0


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


def ended_after(options: list[str], out: Path, texts: int, with_signal: int) -> tuple[int, str]:
    """Exit code and stderr of a run that gets a signal when so many texts are finished."""
    command = [sys.executable, "-m", "dartspec.cli.main", *options, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + LATEST
    while PER_SHARD * len(part_paths(out)) + lines(out / JOURNAL) < texts:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.005)
    os.kill(process.pid, with_signal)
    _, err = process.communicate(timeout=LATEST)
    return process.returncode, err


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_killed_and_interrupted_runs_end_in_the_files_of_an_undisturbed_one(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = tmp_path / "killed"
    code, _ = ended_after(options, killed, texts=PER_SHARD + 2, with_signal=signal.SIGKILL)
    assert code == -signal.SIGKILL
    before = lines(killed / JOURNAL) + PER_SHARD * len(part_paths(killed))
    code, err = ended_after(options, killed, texts=before + 8, with_signal=signal.SIGINT)
    assert code == 130
    assert "interrupted; the same command goes on where it was" in err
    assert "Traceback" not in err
    assert main([*options, "--out", str(killed)]) == 0
    assert main([*options, "--out", str(tmp_path / "whole")]) == 0
    assert contents(killed) == contents(tmp_path / "whole")
    records = [record for path in part_paths(killed) for record in read_records(path)]
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
