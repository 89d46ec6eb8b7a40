"""``leanbayes train``: train one method and save it."""

from dataclasses import asdict, dataclass, field

from rich.console import Console

from leanbayes.errors import InputError
from leanbayes.lab.cli.command import Command, Result, Session, print_line
from leanbayes.lab.cli.folder import make_folder
from leanbayes.lab.cli.recipe_help import SPECIFICATION, recipe_help
from leanbayes.lab.cli.task import DataOptions, read_task
from leanbayes.lab.recipes import Budget, Run, option, parse, prepare, settings

__all__ = ["COMMAND", "TrainOptions"]


@dataclass(frozen=True)
class TrainOptions:
    """What is trained."""

    recipe: str = option("partial", f"The recipe to train, written as {SPECIFICATION}.")
    seed: int = option(0, "The seed of the initial weights, the order of the data and the noise.")
    samples: int = option(32, "How many weight draws each prediction averages.")
    out: str = option("out", "The folder that receives the model and its scores.")
    overwrite: bool = option(
        False, "Replace another model, or the checkpoints of another training, that the folder of --out holds."
    )
    data: DataOptions = field(default_factory=DataOptions)
    budget: Budget = field(default_factory=Budget)


def run(options: TrainOptions, session: Session) -> Result:
    """Train one recipe, save it, and return its scores on the test set."""
    import json

    from leanbayes._files import write_bytes, write_text
    from leanbayes.lab.cli.training_folder import training_folder
    from leanbayes.lab.compare import Watching, is_main_process, judge
    from leanbayes.lab.data.fingerprint import fingerprint
    from leanbayes.storage import save

    recipe = parse(options.recipe)
    if options.samples < 1:
        raise InputError(f"samples must be at least 1, got {options.samples}")
    folder = make_folder(options.out)
    task, about = read_task(options.data, session.bars)
    budget = options.budget.fitting(task)

    session.bars.begin("training", 1, [budget.epochs * recipe.networks() + 1])
    watching = Watching(session.bars, options.recipe, options.seed)
    record: Result = {"command": session.command_line, "recipe": settings(recipe), "budget": asdict(budget)}
    record["seed"] = options.seed
    about["recipe"] = settings(recipe)
    about["training"] = {"budget": asdict(budget), "seed": options.seed, "fingerprint": fingerprint(task)}
    with training_folder(folder, about, options.overwrite) as checkpoints:
        training = Run(budget, options.seed, checkpoints, watching, watch_epochs=watching.remember)
        trained = prepare(recipe, task, training)
        if is_main_process():
            judgement = judge(recipe, trained, task, training, samples=options.samples)
            record |= {"metrics": judgement.metrics, "cost": judgement.cost, "model": str(folder / "model.lb")}
            record |= {"by_case": judgement.by_case, "cases": str(folder / "cases.csv")}
            write_bytes(folder / "cases.csv", judgement.cases.encode())
            save(trained.predictor, folder / "model.lb", about=about)
            write_text(folder / "scores.json", json.dumps(record, indent=1))
    return record


def show(console: Console, record: Result) -> None:
    """Print every metric and where the model is."""
    from leanbayes.lab.compare.cases import case_sentences
    from leanbayes.lab.report import describe

    titles = {name: describe(name)[0] for name in record["metrics"]}
    width = max(map(len, titles.values()), default=0) + 2
    for name, value in record["metrics"].items():
        print_line(console, f"{titles[name]:{width}}{value:.4f}")
    for sentence in case_sentences(record["by_case"]):
        print_line(console, sentence)
    print_line(console, f"cases: {record['cases']}")
    print_line(console, f"model: {record['model']}")


COMMAND = Command(
    "train",
    "Train one method, and save it with its scores on the test set.",
    TrainOptions,
    run,
    show,
    epilog=recipe_help,
)
