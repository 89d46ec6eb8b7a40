import sys, os, traceback
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module, ColwiseParallel, RowwiseParallel
src = open("tests/sharded/probe.py").read().replace("\nmain()\n", "\n")
ns = {}; exec(compile(src, "probe", "exec"), ns)
import leanbayes as lb
torch.distributed.init_process_group("gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
for kind in ("adam", "ivon"):
  for by in ("sample", "mirrored", "local", "flipout", "moments"):
    for sub in (None, "part"):
        try:
            space = lambda: lb.random_k(rate=0.2, seed=1) if sub else None
            one = ns["make"](by, space()); o = lb.Objective(one, lb.Categorical(), n_data=100, with_kl=kind == "adam")
            want = ns["train"](o, ns["opt"](kind, one, o), 1, [0])
            bnn = ns["make"](by, space()); objective = lb.Objective(bnn, lb.Categorical(), n_data=100, with_kl=kind == "adam")
            mesh = init_device_mesh("cpu", (world,))
            parallelize_module(bnn.model, mesh, {f"blocks.{i}.{n}": s() for i in range(2) for n, s in (("a", ColwiseParallel), ("b", RowwiseParallel))})
            bnn.shard_scales()
            got = ns["train"](objective, ns["opt"](kind, bnn, objective), 1, [0])
            e1 = max(abs(a-b)/abs(a) for a, b in zip(want, got))
            e2 = max(float((ns["whole"](b.detach())-a.detach()).abs().max()) for a, b in zip(o.parameters(), objective.parameters()))
            if rank == 0: print("TP", kind, by, sub, "loss %.1e weights %.1e" % (e1, e2), "OK" if e1 < 1e-5 and e2 < 1e-4 else "DIFFERENT", flush=True)
        except Exception as e:
            if rank == 0:
                print("TP", kind, by, sub, "FAILED", type(e).__name__, str(e)[:300], flush=True)
                if os.environ.get("TB"): traceback.print_exc(); sys.stderr.flush()
            if os.environ.get("TB"): os._exit(1)
torch.distributed.destroy_process_group()
