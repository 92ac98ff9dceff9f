// Asks for embeddings with OpenAI's own client, in each form that it has, and prints what it got as JSON.
//
//     node embeddings.mjs http://localhost:8000/v1 '["a text", "another one"]'

import OpenAI from "openai";

const [, , baseURL, texts] = process.argv;
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const input = JSON.parse(texts);
const ask = (options) => client.embeddings.create({ model: "plain", input, ...options });

const vectors = (answer) => answer.data.map((one) => Array.from(one.embedding));
const refusal = await client.embeddings.create({ model: "nowhere", input: "x" }).then(
  () => null,
  (error) => ({ name: error.constructor.name, status: error.status, code: error.code }),
);
const models = [];
for await (const model of client.models.list()) models.push(model.id);

console.log(
  JSON.stringify({
    // Without a format the client asks for base64 and unpacks it.
    unpacked: vectors(await ask({})),
    float: vectors(await ask({ encoding_format: "float" })),
    base64: (await ask({ encoding_format: "base64" })).data.map((one) => one.embedding),
    usage: (await ask({})).usage,
    refusal,
    models,
  }),
);
