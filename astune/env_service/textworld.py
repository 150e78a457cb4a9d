"""TextWorld's text adventures: `textworld:tw-simple`, another of its challenges, or `textworld:custom`.

Game and rules are TextWorld's own code; this file only translates. A game is made when its instance is, from a seed, and is
played without an interpreter of its own. One message is one command, and only its first line counts. A task's metadata may
hold `game_seed`, `settings` (what `tw-make` takes, as `{"rewards": "dense"}`; for `custom` the fields of
`textworld.GameOptions`, as `{"nb_rooms": 5}`), `max_turns` (50) and `show_commands`, which lists what could be done. Its own
tasks have ids such as `train-17`.

The sparse evaluation is 1 for a game that is won and else 0; the dense one is the part of the score that was reached.
"""
