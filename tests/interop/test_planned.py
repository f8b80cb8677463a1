"""Balanced packs and balanced classes in real frameworks: a causal language model under FSDP and tensor parallelism,
Lightning, accelerate, and the Trainer of transformers. Each program runs with gloo, on processors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy
import pytest

from wdscli.shards import ShardWriter

ROOT = Path(__file__).resolve().parents[2]
MODEL = """
import sys, torch, torch.distributed as dist, torch.nn.functional as F, wdscli.loader as wds
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.set_num_threads(1)

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + chr(10))  # in one piece
    sys.stdout.flush()

def new_model():
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, attn_implementation="sdpa"))

def packs(**how):
    data = wds.WebDataset("texts", shuffle="window", seed=1, **how).decode("torch")
    return data.packed(128, "json.tokens", balance=2)

def loss_of(model, pack):
    tokens, ends = pack["npy"].long(), pack["cu_seqlens"].long()
    text = torch.searchsorted(ends, torch.arange(len(tokens)), right=True)
    mask = (text[:, None] == text).tril()[None, None]
    places = pack["position_ids"].long()[None]
    scores = model(input_ids=tokens[None], position_ids=places, attention_mask=mask).logits[0]
    has_next = torch.ones(len(tokens), dtype=torch.bool)
    has_next[ends[1:] - 1] = False
    return F.cross_entropy(scores[has_next], tokens[has_next.roll(1)])
"""
MESH = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

data_ranks, tensor_ranks = map(int, sys.argv[1:])
mesh = init_device_mesh("cpu", (data_ranks, tensor_ranks), mesh_dim_names=("dp", "tp"))
model = new_model()
if tensor_ranks > 1:
    for layer in model.model.layers:
        parallelize_module(layer.mlp, mesh["tp"], {
            "gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()})
if data_ranks > 1:
    fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
total = torch.zeros(1)
loader = wds.WebLoader(packs(mesh=mesh["dp"]).with_epoch(batches=12 // data_ranks), num_workers=0)
for number, pack in enumerate(loader, 1):
    loss = loss_of(model, pack) * data_ranks / 2
    loss.backward()
    total += loss.detach() / data_ranks
    if number * data_ranks % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
        if data_ranks > 1:
            dist.all_reduce(total, group=mesh["dp"].get_group())
        if dist.get_rank() == 0:
            print(f"loss {total.item():.3f}")
        total = torch.zeros(1)
dist.destroy_process_group()
"""
LIGHTNING = """
import lightning, warnings

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = new_model()

    def training_step(self, pack, number):
        say("pack", self.global_rank, number, len(pack["npy"]))
        return loss_of(self.model, pack)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_checkpointing=False)
trainer.fit(Module(), wds.WebLoader(packs().with_epoch(batches=10), num_workers=0))
"""
ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model, optimizer = new_model(), None
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
for number, pack in enumerate(wds.WebLoader(packs().with_epoch(batches=10), num_workers=0)):
    say("pack", accelerator.process_index, number, len(pack["npy"]))
    accelerator.backward(loss_of(model, pack))
    optimizer.step()
    optimizer.zero_grad()
accelerator.end_training()
if dist.is_initialized():
    dist.destroy_process_group()
"""
TRAINER = """
import torch, wdscli.loader as wds
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, points, labels):
        print("labels", labels.tolist(), flush=True)
        scores = self.layer(points)
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "logits": scores}

data = wds.WebDataset("points", shuffle="window", batch_size=6)
data = wds.mix(data, by="cls").decode("torch").to_tuple("npy", "cls")

def collate(samples):
    points, labels = zip(*samples)
    return {"points": torch.stack(list(map(torch.as_tensor, points))), "labels": torch.tensor(labels)}

arguments = TrainingArguments(
    "out", max_steps=8, per_device_train_batch_size=6, use_cpu=True, report_to=[], save_strategy="no",
    dataloader_num_workers=0, disable_tqdm=True, remove_unused_columns=False)
Trainer(Model(), arguments, data_collator=collate, train_dataset=data).train()
"""


def run(folder: Path, source: str, *arguments: object, processes: int = 1) -> list[str]:
    """Run a program with torchrun; the lines that it prints."""
    program = folder / "program.py"
    program.write_text(source)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*command, str(program), *map(str, arguments)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """60 texts with a field ``npy`` of 2 to 60 tokens; the folder around the set."""
    draw = numpy.random.default_rng(0)
    with ShardWriter(f"{tmp_path}/texts/in-%06d.tar", max_count=20, values="json.tokens") as writer:
        for number in range(60):
            tokens = (draw.integers(64) + 3 * numpy.arange(draw.integers(2, 60))) % 64
            writer.write(f"{number:03d}", {"npy": _npy(tokens), "json": b'{"tokens": %d}' % len(tokens)})
    return tmp_path


def _npy(array: numpy.ndarray) -> bytes:
    import io

    stream = io.BytesIO()
    numpy.save(stream, array)
    return stream.getvalue()


def test_a_language_model_under_fsdp_and_tensor_parallelism(texts: Path) -> None:
    pytest.importorskip("transformers")
    alone = run(texts, MODEL + MESH, 1, 1)
    assert len(alone) == 6
    for mesh in ((2, 1), (1, 2)):
        found = run(texts, MODEL + MESH, *mesh, processes=2)
        assert [line.split()[0] for line in found] == ["loss"] * 6
        values = [[float(line.split()[1]) for line in lines] for lines in (found, alone)]
        assert values[0] == pytest.approx(values[1], abs=0.003), mesh


@pytest.mark.parametrize(
    ("name", "program", "processes"), [("lightning", LIGHTNING, 1), ("accelerate", ACCELERATE, 2)]
)
def test_balanced_packs(name: str, program: str, processes: int, texts: Path) -> None:
    pytest.importorskip(name)
    lines = [
        line.split() for line in run(texts, MODEL + program, processes=processes) if line.startswith("pack")
    ]
    ranks = Counter(rank for _, rank, _, _ in lines)
    assert ranks == {str(rank): 10 for rank in range(processes)}
    assert all(2 <= int(length) <= 128 for *_, length in lines)


def test_the_trainer_of_transformers_with_balanced_classes(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with ShardWriter(f"{tmp_path}/points/in-%06d.tar", max_count=20) as writer:
        for number in range(60):
            point = numpy.full(4, number, dtype=numpy.float32)
            label = 0 if number % 6 else 1 + number % 12 // 6
            writer.write(f"{number:03d}", {"npy": _npy(point), "cls": b"%d" % label})
    lines = [line for line in run(tmp_path, TRAINER) if line.startswith("labels")]
    assert len(lines) == 8
    for line in lines:
        assert Counter(line.removeprefix("labels ").strip("[]").split(", ")) == {"0": 2, "1": 2, "2": 2}
