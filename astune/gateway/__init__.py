"""The HTTP door to an episode's model: any program that speaks a known dialect is an agent.

    chat_completions   OpenAI's Chat Completions: request bodies in, answers and stream events out
    responses          OpenAI's Responses, by way of the same
    anthropic_messages Anthropic's Messages, by way of the same
    live_answers       answers while they are sampled, for streams
    episode_keys       which key allows inference for which episode, and answers kept for repeated requests
    answer_store       answers on disk, for a gateway that is killed and comes back
    app                the HTTP application over both
    lease_board        episodes that workers on other machines play, one worker at a time
    worker_routes      what those workers ask
    server             the application on a port of this machine, one a process
    relay              the same for workers of episodes that run in other processes
    in_process         the application for clients of this process, without a socket

Nothing is imported here: a workflow that never leaves Python needs no server.
"""
