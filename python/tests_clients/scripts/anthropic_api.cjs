// The `@anthropic-ai/sdk` package of npm: messages, whole and streamed, with tools.

const { Anthropic } = require('@anthropic-ai/sdk');

const messages = [{ role: 'user', content: 'tell me of the sea' }];
const schema = { type: 'object', properties: { word: { type: 'string' } }, required: ['word'] };

const text = (message) => message.content.map((block) => block.text ?? '').join('');

async function main() {
  const client = new Anthropic({ maxRetries: 0 });
  const ask = { model: 'policy', messages, max_tokens: 12 };
  const texts = [text(await client.messages.create(ask))];
  texts.push(text(await client.messages.stream(ask).finalMessage()));
  const counted = await client.messages.countTokens({ model: 'policy', messages });
  if (!(counted.input_tokens > 0)) throw new Error(JSON.stringify(counted));
  if (process.env.SERVER_HAS_TOOLS === '1') {
    const tools = [{ name: 'look_up', input_schema: schema }];
    const called = await client.messages.create({
      ...ask,
      max_tokens: 64,
      tools,
      tool_choice: { type: 'any' },
    });
    texts.push(text(called));
  }
  const calls = texts.length;
  console.log(JSON.stringify({ calls, experiences: calls, texts }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
