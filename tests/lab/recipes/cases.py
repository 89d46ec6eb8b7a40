"""The budget of the tests: as little as learning needs."""

from leanbayes.lab.recipes import Budget

BUDGET = Budget(epochs=8, batch_size=30, lr=2e-2)
