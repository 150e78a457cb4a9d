#!/bin/sh
# Qwen Code, a coding agent of the command line: npm install -g @qwen-code/qwen-code
# Its home is the episode's own folder, so that nothing is kept from one episode to the next.
question=$(sed 's/.*"main_query": "\([^"]*\)".*/\1/')
HOME=$PWD qwen --bare --yolo --auth-type openai --model policy --max-session-turns 5 \
  --system-prompt "You work in a shell." --core-tools run_shell_command --prompt "$question" </dev/null
