#!/bin/sh
# curl alone: one question, one answer.
question=$(sed 's/.*"main_query": "\([^"]*\)".*/\1/')
curl --silent --fail-with-body "$OPENAI_BASE_URL/chat/completions" \
  -H "Authorization: Bearer $OPENAI_API_KEY" -H 'Content-Type: application/json' \
  -d "{\"model\": \"policy\", \"messages\": [{\"role\": \"user\", \"content\": \"$question\"}]}" |
  sed 's/.*"content":"\([^"]*\)".*/{"final_answer": "\1"}/'
