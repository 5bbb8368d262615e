"""Writes the rows of the benchmark `buffers` with SQLAlchemy, as a plain program would.

Arguments: the address, the number of lots, the experiences of a lot, the bytes of an experience.
Each lot is one transaction of pickled rows. Prints the seconds that the lots took, without the
making of the rows.
"""

import os
import pickle
import sys
import time

from sqlalchemy import Column, Float, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy import create_engine, event


def main() -> None:
    address, lots, per_lot, size = sys.argv[1], *map(int, sys.argv[2:5])
    engine = create_engine(address)
    if address.startswith("sqlite"):

        @event.listens_for(engine, "connect")
        def durable(connection, _record) -> None:
            # The same durability as the other writer's.
            connection.execute("PRAGMA journal_mode=wal")
            connection.execute("PRAGMA synchronous=full")

    metadata = MetaData()
    table = Table(
        "plain",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("uid", String, unique=True),
        Column("task_id", String),
        Column("run_id", Integer),
        Column("msg_id", String),
        Column("model_version", Integer),
        Column("reward", Float),
        Column("consumed", Integer, default=0),
        Column("experience_bytes", LargeBinary),
    )
    metadata.drop_all(engine)
    metadata.create_all(engine)
    payload = os.urandom(size)
    seconds = 0.0
    for lot in range(lots):
        experiences = [
            {"uid": f"{lot}/{number}/0/0/{number:06x}", "reward": 0.5, "payload": payload}
            for number in range(per_lot)
        ]
        begin = time.perf_counter()
        with engine.begin() as connection:
            rows = [
                {
                    "uid": experience["uid"],
                    "task_id": f"{lot}/{number}",
                    "run_id": 0,
                    "msg_id": f"{number:06x}",
                    "model_version": lot,
                    "reward": experience["reward"],
                    "experience_bytes": pickle.dumps(experience),
                }
                for number, experience in enumerate(experiences)
            ]
            connection.execute(table.insert(), rows)
        seconds += time.perf_counter() - begin
    print(seconds)


main()
