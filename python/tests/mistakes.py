"""Table of planted mistakes: the action of the user, the message of `rollway run`, the exit code.

`test_mistakes.py` makes every mistake and generates the table of `docs/mistakes.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Keys of a job that runs in seconds.
SMALL = (
    "buffer.total_steps=2",
    "buffer.batch_size=2",
    "algorithm.repeat_times=2",
    "explorer.runner_per_model=2",
    "explorer.max_retry_times=0",
    "buffer.explorer_input.eval_tasksets=[]",
)

INPUT = "buffer.explorer_input"
WORKFLOW = f"{INPUT}.default_workflow_type"
REWARD = f"{INPUT}.default_reward_fn_type"
TASKSET = f"{INPUT}.taskset"
OPERATORS = "data_processor.experience_pipeline.operators"
MODEL = "explorer.rollout_model"
BUFFER = "buffer.trainer_input.experience_buffer"

#: Exit codes: invalid input, failed job, interrupted by the user because it goes on waiting.
INVALID, FAILED, INTERRUPTED = 2, 1, 130


@dataclass(frozen=True)
class Mistake:
    """One mistake in the folder that `rollway init` writes."""

    #: Action of the user.
    what: str
    #: Parts of the output, in order.
    sees: tuple[str, ...]
    code: int = INVALID
    keys: tuple[str, ...] = ()
    #: Files that are written over those of the template.
    files: dict[str, str] = field(default_factory=dict)
    #: Text of the configuration that is replaced.
    edits: dict[str, str] = field(default_factory=dict)
    config: str = "job.yaml"
    #: Folder that the command runs in, relative to the job's.
    cwd: str = "."
    #: Arguments of the mock server.
    server: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    #: Name of a preparation in `test_mistakes.py`.
    prepare: str = ""


def served(what: str, sees: tuple[str, ...], code: int = INVALID, **more: object) -> Mistake:
    """Returns a mistake in a job with a mock server and a trainer program."""
    return Mistake(what, sees, code, config="server.yaml", **more)  # type: ignore[arg-type]


RIGHT = "def right_digits(response, truth):\n    return 1.0\n"


def flows(body: str, reward: str = RIGHT) -> dict[str, str]:
    """Returns a module with a workflow of this body, and a reward function."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    head = "import asyncio, os\nimport rollway as rw\n\n\nasync def add(task, model):\n"
    return {"flows.py": f"{head}{lines}\n\n{reward}"}


def rows(*lines: str) -> dict[str, str]:
    return {"train.jsonl": "".join(f"{line}\n" for line in lines)}


#: A trainer that waits for a whole batch.
PATIENT = """import os
import rollway as rw

reader = rw.ExperienceReader(os.environ["ROLLWAY_BUFFER"], batch_size=1000, name="trainer")
for version, batch in enumerate(reader, start=1):
    rw.publish_weights(os.environ["ROLLWAY_JOB_DIR"], {}, version=version)
"""

EMPTY_CLASS = "import rollway as rw\n\n\nclass Add(rw.Workflow):\n    pass\n"

ROW = '{"question": "1+1=", "answer": "2"}'
ASK = 'reply = await model.chat([{"role": "user", "content": task.raw_task["question"]}])\n'
SCORE = ASK + "return await rw.compute_reward(task, reply.text)"

CONFIGURATION = (
    Mistake(
        "misspell a key",
        ("buffer.batchsize: unknown key", "did you mean `batch_size`?"),
        keys=("buffer.batchsize=8",),
    ),
    Mistake(
        "write a key into the wrong section",
        ("explorer.repeat_times: unknown key", "it belongs elsewhere: `algorithm.repeat_times`"),
        keys=("explorer.repeat_times=4",),
    ),
    Mistake(
        "write a key like a flag",
        ("unknown flag `--buffer.total_steps`", "`rollway run job.yaml buffer.total_steps=VALUE`"),
        keys=("--buffer.total_steps=5",),
    ),
    Mistake(
        "indent with a tab",
        ("job.yaml:10:2: a tab in the indentation", "indent with spaces"),
        edits={"  batch_size": "\tbatch_size"},
    ),
    Mistake(
        "forget a bracket in the file",
        ("job.yaml:29:1: this is not YAML", "brackets of this line and those before"),
        edits={"algorithm:": "algorithm: {"},
    ),
    Mistake(
        "give a text for a number",
        ("buffer.batch_size: expected a whole number, got `many`",),
        keys=("buffer.batch_size=many",),
    ),
    Mistake(
        "name a file that does not exist",
        ("jop.yaml: file not found", "relative to the current folder"),
        config="jop.yaml",
    ),
    Mistake(
        "use a variable of the environment that is not set",
        ("project: the environment variable `NO_SUCH_VARIABLE` is not set", "give a default"),
        edits={"project: tutorial": "project: ${oc.env:NO_SUCH_VARIABLE}"},
    ),
    Mistake(
        "misspell the algorithm",
        ("unknown algorithm `gpro`", "did you mean `grpo`?"),
        keys=("algorithm.algorithm_type=gpro",),
    ),
    Mistake(
        "misspell an operator",
        ("unknown operator `reward_fliter`", "did you mean `reward_filter`?"),
        keys=(f"{OPERATORS}=[{{name: reward_fliter}}]",),
    ),
    Mistake(
        "misspell an argument of an operator",
        ("`reward_filter`: treshold: unknown argument", "did you mean `threshold`?"),
        keys=(f"{OPERATORS}=[{{name: reward_filter, args: {{treshold: 1}}}}]",),
    ),
    Mistake(
        "train with `engine_type: openai`",
        ("`openai` servers return no token ids, which training needs", "use vllm, sglang or"),
        config="server.yaml",
        keys=(f"{MODEL}.engine_type=openai",),
    ),
    Mistake(
        "benchmark before training",
        ("there are no checkpoints (global_step_…) in", "train first (`mode: both`)"),
        keys=("mode=bench", f"{INPUT}.eval_tasksets=[{{path: held_out.jsonl}}]"),
    ),
)

TASKS = (
    Mistake(
        "misspell the path",
        ("trian.jsonl: there is no such file or folder", "did you mean `./train.jsonl`?"),
        keys=(f"{TASKSET}.path=trian.jsonl",),
    ),
    Mistake(
        "name a dataset of a hub",
        ("openai/gsm8k: there is no such file", "datasets are not downloaded", "hf download"),
        keys=(f"{TASKSET}.path=openai/gsm8k",),
    ),
    Mistake(
        "misspell the field of the answer",
        ("`format.response_key` is `anwser`, but no row has that field", "did you mean `answer`?"),
        keys=(f"{TASKSET}.format={{prompt_key: question, response_key: anwser}}",),
    ),
    Mistake(
        "start the job from another folder",
        (
            "train.jsonl: there is no such file or folder",
            "it is beside the configuration",
            "run the command in job",
        ),
        cwd="..",
    ),
    Mistake(
        "give an empty file",
        ("train.jsonl: it has no rows", "check the path"),
        files=rows(),
    ),
    Mistake(
        "write a row that is not JSON",
        ("train.jsonl, line 2: not a row: expected value (column 14)",),
        files=rows(ROW, '{"question": }'),
    ),
    Mistake(
        "leave a field out of a row",
        ("train.jsonl, line 2: the row has no `question`",),
        files=rows(ROW, '{"answer": "4"}'),
        keys=(f"{WORKFLOW}=simple_workflow", f"{REWARD}=exact_match"),
    ),
    Mistake(
        "change the file of a job, then resume it",
        ("it had 2000 rows when the job was saved, and has 50", "restore it"),
        prepare="changed_tasks",
    ),
)

CODE = (
    Mistake(
        "misspell the workflow",
        ("flows.py has no workflow `ad`", "did you mean `flows:add`?"),
        keys=(f"{WORKFLOW}=flows:ad",),
    ),
    Mistake(
        "misspell the module",
        ("there is no module `flow` for the workflow `flow:add`", "did you mean `flows`?"),
        keys=(f"{WORKFLOW}=flow:add",),
    ),
    Mistake(
        "name the file instead of the module",
        ("there is no module `flows.py` for the workflow `flows.py:add`", "did you mean `flows`?"),
        keys=(f"{WORKFLOW}=flows.py:add",),
    ),
    Mistake(
        "make a syntax error",
        ("could not be imported: SyntaxError: expected ':' (flows.py, line 1)",),
        files={"flows.py": "async def add(task, model)\n    return 1.0\n"},
    ),
    Mistake(
        "import a package that is not installed",
        ("ModuleNotFoundError: No module named 'no_such_package'", "flows.py, line 1"),
        files={"flows.py": "import no_such_package\n"},
    ),
    Mistake(
        "use a Python without Rollway",
        ("has no package `rollway`", "install"),
        keys=("explorer.python={python}",),
        prepare="bare_python",
    ),
    Mistake(
        "name a Python that does not exist",
        ("Python interpreter `no-such-python` not found", "set `explorer.python`"),
        keys=("explorer.python=no-such-python",),
    ),
    Mistake(
        "forget the reward function",
        ("no reward function is configured", "name one with `default_reward_fn_type`"),
        keys=(f"{WORKFLOW}=simple_workflow", f"{REWARD}=null"),
    ),
    Mistake(
        "raise in the workflow",
        ("run failed: KeyError: 'anwser'", 'flows.py", line 7, in add', "8 as workflow"),
        FAILED,
        files=flows(ASK + 'return float(reply.text == task.raw_task["anwser"])'),
    ),
    Mistake(
        "use the task as if it were its row",
        ("run failed: TypeError: a Task has no items; its row has: task.raw_task['question']",),
        FAILED,
        files=flows(ASK.replace("task.raw_task[", "task[") + "return 1.0"),
    ),
    Mistake(
        "give a text to `chat`",
        ("run failed: TypeError: chat() takes a list of messages, such as [{'role'", "not a str"),
        FAILED,
        files=flows('reply = await model.chat(task.raw_task["question"])\nreturn 1.0'),
    ),
    Mistake(
        "misspell a sampling option",
        ("temprature is not passed on to servers: did you mean `temperature`?",),
        FAILED,
        keys=(f"{TASKSET}.rollout_args={{temprature: 1.0}}",),
    ),
    Mistake(
        "write a workflow class without `run_async`",
        ("workflow `flows:Add`: Add has no run(): define `async def run_async(self)`",),
        files={"flows.py": f"{EMPTY_CLASS}\n\n{RIGHT}"},
        keys=(f"{WORKFLOW}=flows:Add",),
    ),
    Mistake(
        "await in a function that is not async",
        ("could not be imported: SyntaxError: 'await' outside async function (flows.py, line 6)",),
        files={"flows.py": flows(SCORE)["flows.py"].replace("async def", "def")},
    ),
    Mistake(
        "return nothing",
        ("step 1: none of 4 experiences has a reward", "return a reward from the workflow"),
        FAILED,
        files=flows(ASK + "print(reply.text)"),
    ),
    Mistake(
        "return NaN",
        ("run failed: the reward nan is not a finite 32-bit number", "none of 4 tasks succeeded"),
        FAILED,
        files=flows(ASK + 'return float("nan")'),
    ),
    Mistake(
        "return text",
        ("run failed: the workflow returned an object of type str", "return a reward (a number"),
        FAILED,
        files=flows(ASK + "return reply.text"),
    ),
    Mistake(
        "forget `await`",
        ("run failed: AttributeError: `chat()` has no result yet", "did you forget `await`?"),
        FAILED,
        files=flows(ASK.replace("await ", "") + "return float(len(reply.text))"),
    ),
    Mistake(
        "return a reward without a model call",
        ("no turn of the model was recorded", "call the model through the argument `model`"),
        FAILED,
        files=flows("return 1.0"),
    ),
    Mistake(
        "wait without end",
        ("batch 1 waits for 4 of 4 runs", "at flows.py:6 add", "`explorer.max_timeout` bounds"),
        INTERRUPTED,
        files=flows("await asyncio.sleep(3600)"),
    ),
    Mistake(
        "end the process in the workflow",
        ("run failed: worker ended: exit status: 3", "the process of the run ended: it called"),
        FAILED,
        files=flows("os._exit(3)"),
        keys=("explorer.failures.runner_lost.retries=0",),
    ),
    Mistake(
        "raise in the reward function",
        ("run failed: ZeroDivisionError: division by zero", "in right_digits"),
        FAILED,
        files=flows(SCORE, "def right_digits(response, truth):\n    return 1 / 0\n"),
    ),
    Mistake(
        "return NaN from the reward function",
        (
            "run failed: the reward function right_digits returned nan; a finite number was "
            "expected",
        ),
        FAILED,
        files=flows(SCORE, 'def right_digits(response, truth):\n    return float("nan")\n'),
    ),
    Mistake(
        "set a limit that no run can keep",
        (
            "run failed: the run's recording takes more than 8 bytes of experiences",
            "raise `explorer.limits.payload_bytes_per_run`",
        ),
        FAILED,
        keys=("explorer.limits.payload_bytes_per_run=8",),
    ),
)

SERVER = (
    Mistake(
        "forget to start the server",
        (
            "at http://127.0.0.1:1: no connection",
            "start it, or correct `explorer.rollout_model.base_url`",
        ),
        config="server.yaml",
        keys=(f"{MODEL}.base_url=http://127.0.0.1:1/v1",),
    ),
    Mistake(
        "give an address without `http://`",
        ("`localhost:8000` is not an address", "write http://localhost:8000 or https://"),
        config="server.yaml",
        keys=(f"{MODEL}.base_url=localhost:8000",),
    ),
    Mistake(
        "give the address of something else",
        ("/v1/models responded with status 404", "see that an inference server listens there"),
        config="server.yaml",
        keys=(f"{MODEL}.base_url=http://127.0.0.1:{{port}}/v1",),
        prepare="web_server",
    ),
    served(
        "give a model name that the server does not have",
        ("it has no model `Qwen/Qwen3-8B`", "available: mock", "rollout_model.model_path`"),
        keys=(f"{MODEL}.model_path=Qwen/Qwen3-8B",),
    ),
    served(
        "name a variable for the key that is not set",
        (
            "explorer.rollout_model.api_key_env: the environment variable NO_SUCH_KEY is not set",
            "export NO_SUCH_KEY before the job is started",
        ),
        keys=(f"{MODEL}.api_key_env=NO_SUCH_KEY",),
    ),
    served(
        "give the wrong key",
        (
            "it rejects the key with status 401 Unauthorized",
            "has the server's key in",
            "api_key_env`",
        ),
        keys=(f"{MODEL}.api_key_env=MY_KEY",),
        env={"ROLLWAY_MOCK_SERVER_API_KEY": "right", "MY_KEY": "wrong"},
    ),
    served(
        "let the server die",
        ("server unhealthy, not routed", "waits for a server of model policy", "hint: start the"),
        INTERRUPTED,
        server=("--first-token-seconds", "60"),
        prepare="dying_server",
    ),
)

TRAINER = (
    Mistake(
        "name a program that does not exist",
        ("trainer.command: program `no-such-program` not found", "give its full path"),
        keys=("trainer.command=[no-such-program]",),
    ),
    served(
        "misspell its script",
        ("there is no script `trian.py`", "did you mean `train.py`?", "relative to"),
        keys=("trainer.command=[python3, trian.py]",),
    ),
    served(
        "raise in the trainer",
        ("the trainer `", "` ended with an error: exit status: 1", "| ValueError: no GPU"),
        FAILED,
        files={"train.py": 'raise ValueError("no GPU")\n'},
    ),
    served(
        "end the trainer without publishing weights",
        ("ended without an error, but has published no weights", "| bye", "`rw.publish_weights`"),
        FAILED,
        files={"train.py": "print('bye')\n"},
    ),
    served(
        "wait for more experiences than a step has",
        ("waits after step 1 for weights of version 1", "hint: check that the trainer runs, has"),
        INTERRUPTED,
        keys=("buffer.train_batch_size=1000",),
        files={"train.py": PATIENT},
    ),
    served(
        "configure no trainer",
        ("no trainer is configured (trainer.command): waiting up to 3600 s",),
        INTERRUPTED,
        keys=("trainer.command=[]",),
    ),
)

MACHINE = (
    Mistake(
        "use the port of another program for the synchronizer",
        ("`synchronizer.address`: 127.0.0.1:", "cannot be listened at", "another port"),
        keys=("synchronizer.address=127.0.0.1:{port}",),
        prepare="used_port",
    ),
    Mistake(
        "use the port of another program for metrics",
        ("another process listens on", "set `monitor.prometheus`"),
        keys=("monitor.prometheus=127.0.0.1:{port}",),
        prepare="used_port",
    ),
    Mistake(
        "use a folder that cannot be written to",
        ("the job's folder", "is not usable", "set `checkpoint_root_dir`"),
        keys=("checkpoint_root_dir=/proc/jobs",),
    ),
    Mistake(
        "start the job twice",
        ("is already running (process", "another job needs another `name`"),
        prepare="second_process",
    ),
    Mistake(
        "use the buffer of another job",
        ("it holds the experiences of the job `tutorial/first`", "shared"),
        keys=(f"{BUFFER}={{storage_type: sql, path: 'sqlite:///shared.db'}}", "name=second"),
        prepare="owned_buffer",
    ),
)

MISTAKES = {
    "Configuration": CONFIGURATION,
    "Tasks": TASKS,
    "Workflow and reward": CODE,
    "Inference server": SERVER,
    "Trainer": TRAINER,
    "Machine and folders": MACHINE,
}
