"""An agent in a process of its own, which needs only an address and a key:

    rollway run examples/serve/serve.yaml            # in one terminal
    python examples/serve/agent.py                   # in another; needs `pip install openai`

It asks the model for sums with the plain `openai` client, sends a reward for each response, and
commits: the responses become experiences for a trainer.
"""

import argparse
import random

import openai
import rollway as rw


def main() -> None:
    """Asks for sums, sends feedback and commits."""
    parser = argparse.ArgumentParser(description="An agent in a process of its own")
    parser.add_argument("--job", default="checkpoints/examples/serve", help="the job's folder")
    parser.add_argument("--tasks", type=int, default=20, help="number of sums")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    # The job's folder has the address of the server and the key.
    server = rw.ServeClient.of_job(arguments.job)
    server.wait()
    model = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=server.api_key)

    chance = random.Random(arguments.seed)
    right = 0
    for task in range(arguments.tasks):
        a, b = chance.randrange(100), chance.randrange(100)
        answer = model.chat.completions.create(
            model=server.model(),
            messages=[{"role": "user", "content": f"{a:02}+{b:02}="}],
            max_tokens=5,
        )
        text = answer.choices[0].message.content
        reward = float(text == f"{a + b:03}")
        right += int(reward)
        server.feedback(reward, [answer.id], task_id=task)
        print(f"{a:02} + {b:02} = {text}  {'right' if reward else 'wrong'}")
    done = server.commit()
    print(
        f"{right} of {arguments.tasks} were right; "
        f"step {done['step']} has {done['experiences']} experiences"
    )


if __name__ == "__main__":
    main()
