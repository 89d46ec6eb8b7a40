import sys, os, traceback
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
import importlib.util
spec = importlib.util.spec_from_file_location("probe", "tests/sharded/probe.py")
src = open("tests/sharded/probe.py").read().replace("\nmain()\n", "\n")
ns = {}; exec(compile(src, "probe", "exec"), ns)
import leanbayes as lb
mode, folder = sys.argv[1], sys.argv[2]
torch.distributed.init_process_group("gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
def build(kind, sub, seed=0):
    bnn = ns["make"]("sample", lb.random_k(rate=0.2, seed=1) if sub else None)
    objective = lb.Objective(bnn, lb.Categorical(), n_data=100, with_kl=kind == "adam")
    ns["shard"](objective, "grouped")
    optimizer = lb.optim.IVON(bnn, lr=0.1, n_data=100, steps=10, initial_scale=0.1, average=0.5, means="adam") if kind == "ivon-adam" else ns["opt"](kind, bnn, objective)
    return objective, optimizer
def steps(objective, optimizer, first, last, parts=4):
    x, y = ns["data"](8); n = 8//parts
    for s in range(first, last):
        optimizer.zero_grad()
        mine = [p for p in range(parts) if p*world//parts == rank]
        for p in mine:
            out = objective(x[s, p*n:(p+1)*n], y[s, p*n:(p+1)*n], generator=ns["noise"](s, p))
            (out.loss/len(mine)).backward()
        optimizer.step()
for kind in ("adam", "ivon", "ivon-adam"):
    for sub in (False, True):
        where = f"{folder}/{kind}{sub}"
        try:
            objective, optimizer = build(kind, sub)
            if mode == "save":
                steps(objective, optimizer, 0, 3)
                m, o = get_state_dict(objective, optimizer)
                dcp.save({"model": m, "optimizer": o}, checkpoint_id=where)
                steps(objective, optimizer, 3, 8)
                w = [ns["whole"](p.detach()) for p in objective.parameters()]
                if rank == 0: torch.save(w, where + ".pt")
            else:
                with torch.no_grad():
                    for p in objective.parameters(): p.add_(0.3)
                m, o = get_state_dict(objective, optimizer)
                state = {"model": m, "optimizer": o}
                dcp.load(state, checkpoint_id=where)
                set_state_dict(objective, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
                steps(objective, optimizer, 3, 8)
                w = [ns["whole"](p.detach()) for p in objective.parameters()]
                want = torch.load(where + ".pt")
                e = max(float((a-b).abs().max()) for a, b in zip(w, want))
                if rank == 0: print(world, kind, sub, "%.1e" % e, "OK" if e < 2e-6 else "DIFFERENT", flush=True)
        except Exception as e:
            if rank == 0: print(world, mode, kind, sub, "FAILED", type(e).__name__, str(e)[:300]); traceback.print_exc()
            raise
torch.distributed.destroy_process_group()
