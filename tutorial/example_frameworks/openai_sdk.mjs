// OpenAI's SDK for JavaScript, streamed: npm install openai
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const parameters = {
  type: "object",
  properties: { a: { type: "integer" }, b: { type: "integer" } },
  required: ["a", "b"],
};
const tools = [{ type: "function", function: { name: "add", description: "Add two numbers.", parameters } }];

const client = new OpenAI();
const messages = [{ role: "user", content: JSON.parse(readFileSync(0)).main_query }];
let answer;
for (let turn = 0; turn < 5; turn++) {
  answer = await client.chat.completions.stream({ model: "policy", messages, tools }).finalMessage();
  messages.push(answer);
  if (!answer.tool_calls?.length) break;
  for (const call of answer.tool_calls) {
    const { a, b } = JSON.parse(call.function.arguments);
    messages.push({ role: "tool", tool_call_id: call.id, content: String(a + b) });
  }
}
console.log(JSON.stringify({ final_answer: answer.content }));
