//! A tiny language model in the file format of llama.cpp, for tests against a real server.
//!
//! Its weights are random, its tokens are the 256 bytes and the marks of a chat. It says nothing
//! sensible, but everything about it is known: every text can be written with it, a token is a
//! byte, and the same seed makes the same file.

/// The width, the layers, the heads and the width inside a layer.
const WIDTH: usize = 64;
const LAYERS: usize = 2;
const HEADS: u32 = 4;
const INNER: usize = 128;

/// How long a text may be.
const CONTEXT: u32 = 8192;

/// The marks, each a token; the bytes follow them.
const MARKS: [&str; 5] = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"];
const END: u32 = 4;
const VOCABULARY: usize = MARKS.len() + 256;

/// How a chat becomes a text: each message between its marks, then the beginning of the answer.
const TEMPLATE: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' }}\
    {% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Data begins at multiples of so many bytes.
const ALIGNMENT: usize = 32;

/// Returns the file.
pub(crate) fn tiny() -> Vec<u8> {
    let facts = facts();
    let tensors = tensors();
    let mut file = GgufFile::default();
    file.bytes.extend(b"GGUF");
    file.number(3);
    file.long(tensors.len());
    file.long(facts.len());
    for (key, fact) in &facts {
        file.text(key);
        file.number(fact.kind());
        file.fact(fact);
    }
    let mut offset = 0;
    for tensor in &tensors {
        file.text(&tensor.name);
        file.number(if tensor.rows == 1 { 1 } else { 2 });
        file.long(tensor.columns);
        if tensor.rows > 1 {
            file.long(tensor.rows);
        }
        // Numbers of 32 bits.
        file.number(0);
        file.long(offset);
        offset += (tensor.values.len() * 4).next_multiple_of(ALIGNMENT);
    }
    for tensor in &tensors {
        file.align();
        file.bytes.extend(tensor.values.iter().flat_map(|value| value.to_le_bytes()));
    }
    file.align();
    file.bytes
}

/// What a file says about its model.
enum Fact {
    Number(u32),
    Fraction(f32),
    Truth(bool),
    Text(String),
    Texts(Vec<String>),
    Fractions(Vec<f32>),
    Integers(Vec<i32>),
}

fn facts() -> Vec<(&'static str, Fact)> {
    let bytes = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>"));
    let tokens = MARKS.iter().map(ToString::to_string).chain(bytes).collect();
    // The kinds of tokens: 2 is unknown, 3 a mark, 6 a byte.
    let kinds = (0..VOCABULARY).map(|token| match token {
        0 => 2,
        token if token < MARKS.len() => 3,
        _ => 6,
    });
    let small = |number: usize| Fact::Number(u32::try_from(number).expect("a small number"));
    vec![
        ("general.architecture", Fact::Text("llama".into())),
        ("general.name", Fact::Text("tiny".into())),
        ("llama.context_length", Fact::Number(CONTEXT)),
        ("llama.embedding_length", small(WIDTH)),
        ("llama.block_count", small(LAYERS)),
        ("llama.feed_forward_length", small(INNER)),
        ("llama.attention.head_count", Fact::Number(HEADS)),
        ("llama.attention.head_count_kv", Fact::Number(HEADS)),
        ("llama.attention.layer_norm_rms_epsilon", Fact::Fraction(1e-5)),
        ("llama.rope.dimension_count", small(WIDTH / HEADS as usize)),
        ("llama.vocab_size", small(VOCABULARY)),
        ("tokenizer.ggml.model", Fact::Text("llama".into())),
        ("tokenizer.ggml.tokens", Fact::Texts(tokens)),
        ("tokenizer.ggml.scores", Fact::Fractions(vec![0.0; VOCABULARY])),
        ("tokenizer.ggml.token_type", Fact::Integers(kinds.collect())),
        ("tokenizer.ggml.unknown_token_id", Fact::Number(0)),
        ("tokenizer.ggml.bos_token_id", Fact::Number(1)),
        ("tokenizer.ggml.eos_token_id", Fact::Number(END)),
        ("tokenizer.ggml.add_bos_token", Fact::Truth(false)),
        ("tokenizer.ggml.add_eos_token", Fact::Truth(false)),
        ("tokenizer.ggml.add_space_prefix", Fact::Truth(false)),
        ("tokenizer.chat_template", Fact::Text(TEMPLATE.into())),
    ]
}

/// A matrix, or with one row a vector.
struct GgufTensor {
    name: String,
    columns: usize,
    rows: usize,
    values: Vec<f32>,
}

fn tensors() -> Vec<GgufTensor> {
    let mut random = Random(0x5EED);
    let mut list = vec![embedding(&mut random), ones("output_norm.weight"), head(&mut random)];
    for layer in 0..LAYERS {
        list.push(ones(&format!("blk.{layer}.attn_norm.weight")));
        list.push(ones(&format!("blk.{layer}.ffn_norm.weight")));
        for (name, columns, rows) in [
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", WIDTH, WIDTH),
            ("attn_v", WIDTH, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", WIDTH, INNER),
            ("ffn_up", WIDTH, INNER),
            ("ffn_down", INNER, WIDTH),
        ] {
            list.push(matrix(&format!("blk.{layer}.{name}.weight"), columns, rows, &mut random));
        }
    }
    list
}

/// Every token's vector has the same large first number. No layer undoes that, so the first number
/// of what reaches the head is always clearly above zero, and the head can tell apart what the
/// model may say from what it never says.
fn embedding(random: &mut Random) -> GgufTensor {
    let mut tensor = matrix("token_embd.weight", WIDTH, VOCABULARY, random);
    for row in tensor.values.chunks_mut(WIDTH) {
        row.iter_mut().for_each(|value| *value *= 8.0);
        row[0] = 4.0;
    }
    tensor
}

/// The head lets through what can be printed and the end of an answer. Bytes of characters beyond
/// ASCII only come if a request asks for them (`logit_bias`): the server merges what it tells of
/// them, which is a case of its own.
fn head(random: &mut Random) -> GgufTensor {
    let mut tensor = matrix("output.weight", WIDTH, VOCABULARY, random);
    for (token, row) in tensor.values.chunks_mut(WIDTH).enumerate() {
        let byte = token.checked_sub(MARKS.len());
        let said = token == END as usize || byte.is_some_and(|byte| (32..127).contains(&byte));
        row[0] = if said { 1.0 } else { -4.0 };
        row[1..].iter_mut().for_each(|value| *value *= 4.0);
    }
    tensor
}

fn ones(name: &str) -> GgufTensor {
    GgufTensor { name: name.into(), columns: WIDTH, rows: 1, values: vec![1.0; WIDTH] }
}

fn matrix(name: &str, columns: usize, rows: usize, random: &mut Random) -> GgufTensor {
    let scale = 1.0 / (columns as f32).sqrt();
    let values = (0..columns * rows).map(|_| random.next() * scale).collect();
    GgufTensor { name: name.into(), columns, rows, values }
}

/// Numbers between -1 and 1, the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        // The generator known as `xorshift64*`; its upper 24 bits fit a fraction exactly.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40;
        bits as f32 / (1 << 23) as f32 - 1.0
    }
}

#[derive(Default)]
struct GgufFile {
    bytes: Vec<u8>,
}

impl GgufFile {
    fn number(&mut self, number: u32) {
        self.bytes.extend(number.to_le_bytes());
    }

    fn long(&mut self, number: usize) {
        self.bytes.extend((number as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.long(text.len());
        self.bytes.extend(text.bytes());
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }

    fn list<T>(&mut self, kind: u32, items: &[T], write: impl Fn(&mut Self, &T)) {
        self.number(kind);
        self.long(items.len());
        items.iter().for_each(|item| write(self, item));
    }

    fn fact(&mut self, fact: &Fact) {
        match fact {
            Fact::Number(number) => self.number(*number),
            Fact::Fraction(number) => self.bytes.extend(number.to_le_bytes()),
            Fact::Truth(truth) => self.bytes.push(u8::from(*truth)),
            Fact::Text(text) => self.text(text),
            Fact::Texts(texts) => self.list(8, texts, |file, text| file.text(text)),
            Fact::Fractions(numbers) => {
                self.list(6, numbers, |file, number| file.bytes.extend(number.to_le_bytes()));
            }
            Fact::Integers(numbers) => {
                self.list(5, numbers, |file, number| file.bytes.extend(number.to_le_bytes()));
            }
        }
    }
}

impl Fact {
    /// The number of its type in the file.
    fn kind(&self) -> u32 {
        match self {
            Self::Number(_) => 4,
            Self::Fraction(_) => 6,
            Self::Truth(_) => 7,
            Self::Text(_) => 8,
            Self::Texts(_) | Self::Fractions(_) | Self::Integers(_) => 9,
        }
    }
}
