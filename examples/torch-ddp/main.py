"""DistributedDataParallel on several hosts; it runs under torchrun as well, and resumes."""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=32, help="of each process")
args = parser.parse_args()

device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    # NCCL sends objects through the current GPU, which would otherwise be the same one, GPU 0, in
    # all processes of a host.
    torch.cuda.set_device(device)
dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
rank = dist.get_rank()
saved = Path(os.environ.get("TRAIN_CHECKPOINT_DIR", "checkpoints"), "snapshot.pt")


def points_and_quadrants():
    """Return the same data in every process."""
    random = torch.Generator().manual_seed(0)
    points = 2 * torch.rand(6400, 2, generator=random) - 1
    return points, 2 * (points[:, 0] > 0).long() + (points[:, 1] > 0).long()


def restore(model, optimizer):
    """Return the number of completed epochs. All processes get the first one's state."""
    snapshots = [torch.load(saved, map_location="cpu") if rank == 0 and saved.exists() else None]
    dist.broadcast_object_list(snapshots, src=0)
    if snapshots[0] is None:
        return 0
    model.load_state_dict(snapshots[0]["model"])
    optimizer.load_state_dict(snapshots[0]["optimizer"])
    return snapshots[0]["epochs"]


def save(epochs, model, optimizer):
    """Save a snapshot in the first process. The state is the same in all."""
    if rank == 0:
        saved.parent.mkdir(parents=True, exist_ok=True)
        state = {"epochs": epochs, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, saved.with_name("part.pt"))
        saved.with_name("part.pt").replace(saved)


def report(**record):
    """Append a line to the launcher's progress file, if there is one."""
    if "TRAIN_PROGRESS_FILE" in os.environ:
        with Path(os.environ["TRAIN_PROGRESS_FILE"]).open("a") as stream:
            stream.write(json.dumps({"phase": "training", **record}) + "\n")


torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
network.to(device)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
begun = restore(network, optimizer)
model = DistributedDataParallel(network)
data = TensorDataset(*points_and_quadrants())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True)

print(f"rank {rank} of {dist.get_world_size()} on {device}, from epoch {begun}", flush=True)
shown, steps = 0.0, args.epochs * len(loader)
for epoch in range(begun, args.epochs):
    sampler.set_epoch(epoch)
    for batch, (points, quadrants) in enumerate(loader, 1):
        optimizer.zero_grad()
        logits = model(points.to(device))
        loss = torch.nn.functional.cross_entropy(logits, quadrants.to(device))
        loss.backward()
        optimizer.step()
        step = epoch * len(loader) + batch
        if time.monotonic() - shown > 0.5 or step == steps:
            shown = time.monotonic()
            report(step=step, steps=steps, epoch=epoch + 1, epochs=args.epochs, loss=loss.item())
    save(epoch + 1, network, optimizer)

weights = b"".join(value.cpu().numpy().tobytes() for value in network.state_dict().values())
digest = hashlib.sha256(weights).hexdigest()
print(f"SHA-256 of the weights, the same in every process: {digest[:16]}")
if rank == 0:
    folder = Path(os.environ.get("TRAIN_MODEL_DIR", "model"))
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), folder / "weights.pt")
dist.destroy_process_group()
