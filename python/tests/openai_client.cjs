// The `openai` package of npm against a gateway: calls a model in the ways that it offers, and
// prints what it got as one line of JSON. Named by the environment: OPENAI_BASE_URL and
// OPENAI_API_KEY, as the package itself reads them.

const { OpenAI } = require('openai');

const model = 'policy';
const messages = [{ role: 'user', content: 'tell me of the sea' }];
const tools = [
  {
    type: 'function',
    function: {
      name: 'look_up',
      parameters: { type: 'object', properties: { word: { type: 'string' } } },
    },
  },
];

async function main() {
  const client = new OpenAI({ maxRetries: 0 });
  const whole = await client.chat.completions.create({ model, messages, max_tokens: 12 });

  let streamed = '';
  let usage = null;
  const stream = await client.chat.completions.create({
    model,
    messages,
    max_tokens: 12,
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    streamed += chunk.choices[0]?.delta?.content ?? '';
    usage = chunk.usage ?? usage;
  }

  const called = await client.chat.completions.create({
    model,
    messages,
    tools,
    tool_choice: 'required',
  });
  const text = await client.completions.create({ model, prompt: 'the sea', max_tokens: 6 });

  let status = null;
  try {
    await new OpenAI({ apiKey: 'rw-wrong', maxRetries: 0 }).models.list();
  } catch (error) {
    status = error.status;
  }
  const models = [];
  for await (const one of client.models.list()) {
    models.push(one.id);
  }
  const message = called.choices[0].message;
  console.log(
    JSON.stringify({
      whole: whole.choices[0].message.content,
      streamed,
      usage,
      tool: message.tool_calls[0].function.name,
      arguments: message.tool_calls[0].function.arguments,
      text: text.choices[0].text,
      status,
      models,
      ids: [whole.id, called.id, text.id],
    }),
  );
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
