"""`python -m rollway.worker`: one worker process, or a supervisor with `--connect`."""

from rollway.worker.process import main

if __name__ == "__main__":
    main()
