"""A thin door to the `astune` command: `python launcher.py …` takes the same flags."""

from astune.cli import main

if __name__ == "__main__":
    main()
