// Asks the example repository over HTTP: one inference, and a stream of responses. Nothing has to be installed.
//
//   node client.mjs [localhost:8000]

const address = process.argv[2] ?? "localhost:8000";

// Sends JSON; an answer other than 200 is an error with the server's words.
async function post(path, body) {
  const answer = await fetch(`http://${address}${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(10_000),
  });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}: ${await answer.text()}`);
  return answer;
}

async function infer() {
  const sent = Array.from({ length: 16 }, (_, place) => place);
  const inputs = [{ name: "INPUT0", shape: [1, 16], datatype: "FP32", data: sent }];
  const { outputs } = await (await post("/v2/models/identity/infer", { inputs })).json();
  const same = outputs[0].data.every((number, place) => number === sent[place]);
  console.log(`identity: ${sent.length} numbers, ${same ? "as sent" : "others than sent"}`);
}

// Yields the server-sent events of an answer, each as an object.
async function* events(answer) {
  let text = "";
  for await (const part of answer.body.pipeThrough(new TextDecoderStream())) {
    text += part;
    const complete = text.split("\n\n");
    text = complete.pop();
    for (const event of complete) yield JSON.parse(event.replace(/^data: /, ""));
  }
}

// The model answers as often as the first number says.
async function stream() {
  const row = Array(16).fill(0);
  row[0] = 3;
  let count = 0;
  for await (const event of events(await post("/v2/models/repeat/generate_stream", { INPUT0: row }))) {
    if (event.error) throw new Error(event.error);
    count += 1;
  }
  console.log(`repeat: ${count} responses`);
}

await infer();
await stream();
