// The `openai` package of npm: chats and responses, whole and streamed, with tools.

const { OpenAI } = require('openai');

const question = 'tell me of the sea';
const messages = [{ role: 'user', content: question }];
const schema = { type: 'object', properties: { word: { type: 'string' } }, required: ['word'] };

async function main() {
  const client = new OpenAI({ maxRetries: 0 });
  const ask = { model: 'policy', messages, max_tokens: 12 };
  const texts = [];
  const whole = await client.chat.completions.create(ask);
  texts.push(whole.choices[0].message.content ?? '');
  let streamed = '';
  for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
    streamed += chunk.choices[0]?.delta?.content ?? '';
  }
  texts.push(streamed);
  const respond = { model: 'policy', input: question, max_output_tokens: 12 };
  texts.push((await client.responses.create(respond)).output_text);
  let events = '';
  for await (const event of await client.responses.create({ ...respond, stream: true })) {
    events += event.type === 'response.output_text.delta' ? event.delta : '';
  }
  texts.push(events);
  if (process.env.SERVER_HAS_TOOLS === '1') {
    const tools = [{ type: 'function', function: { name: 'look_up', parameters: schema } }];
    const called = await client.chat.completions.create({
      model: 'policy',
      messages,
      tools,
      tool_choice: 'required',
    });
    texts.push(called.choices[0].message.content ?? '');
  }
  const calls = texts.length;
  console.log(JSON.stringify({ calls, experiences: calls, texts }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
