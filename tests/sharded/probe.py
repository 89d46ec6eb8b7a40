"""Probe."""
import sys, os, traceback
import torch
from torch import nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import leanbayes as lb
torch.set_num_threads(1)

class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n); self.a = nn.Linear(n, 2*n); self.b = nn.Linear(2*n, n)
    def forward(self, x):
        return x + self.b(F.relu(self.a(self.norm(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)   # registered first, used last
        self.stem = nn.Linear(5, 6)
        self.blocks = nn.ModuleList(Block(6) for _ in range(2))
    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks: x = b(x)
        return self.head(x)

def make(by, subspace=None):
    torch.manual_seed(0)
    return lb.Bayesian(Net(), propagate=by, subspace=subspace, posterior=lb.posteriors.Normal(init_scale=0.1))

def data(steps, size=8):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(steps, size, 5, generator=g); y = torch.randint(3, (steps, size), generator=g)
    return x, y

def noise(step, part):
    return torch.Generator().manual_seed(1000*step+part)

def train(objective, optimizer, parts, mine, steps=4):
    x, y = data(steps)
    losses = []
    for s in range(steps):
        optimizer.zero_grad()
        total = 0.
        for p in mine:
            n = x.shape[1]//parts
            sl = slice(p*n, (p+1)*n)
            out = objective(x[s, sl], y[s, sl], generator=noise(s, p))
            (out.loss/len(mine)).backward()
            total += out.loss.detach()/len(mine)
        if len(mine) < parts:
            torch.distributed.all_reduce(total); total /= parts/len(mine)
        optimizer.step()
        losses.append(float(total))
    return losses

def opt(kind, bnn, objective):
    if kind == "ivon": return lb.optim.IVON(bnn, lr=0.1, n_data=100, steps=10, initial_scale=0.1)
    return torch.optim.Adam(objective.parameters(), lr=0.01)

def shard(objective, how):
    bnn = objective.model
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    if how != "root":
        for m in [*bnn.model.blocks, bnn.model.head]:
            fully_shard([m, *bnn.scales_of(m)] if how == "grouped" else m, mesh=mesh)
    fully_shard(objective, mesh=mesh)

def whole(t):
    return t.full_tensor() if hasattr(t, "full_tensor") else t

def main():
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    for how in ("grouped", "parts", "root"):
      for kind in ("adam", "ivon"):
        for by in ("sample", "mirrored", "local", "flipout", "moments"):
          for sub in (None, "part"):
            space = lambda m: lb.random_k(rate=0.2, seed=1) if sub else None
            try:
                torch.manual_seed(0)
                one = make(by, space(None)); o = lb.Objective(one, lb.Categorical(), n_data=100, with_kl=kind == "adam")
                want = train(o, opt(kind, one, o), world, range(world))
                bnn = make(by, space(None)); objective = lb.Objective(bnn, lb.Categorical(), n_data=100, with_kl=kind == "adam")
                shard(objective, how)
                got = train(objective, opt(kind, bnn, objective), world, [rank])
                e1 = max(abs(a-b)/abs(a) for a, b in zip(want, got))
                e2 = max(float((whole(b.detach())-a.detach()).abs().max()) for a, b in zip(o.parameters(), objective.parameters()))
                if rank == 0: print(how, kind, by, sub, "loss %.1e weights %.1e" % (e1, e2), "OK" if e1 < 1e-5 and e2 < 1e-4 else "DIFFERENT", flush=True)
            except Exception as e:
                if rank == 0:
                    print(how, kind, by, sub, "FAILED", type(e).__name__, str(e)[:300], flush=True)
                    if os.environ.get("TB"): traceback.print_exc(); 
                if os.environ.get("TB"): sys.exit(1)
    torch.distributed.destroy_process_group()
main()
