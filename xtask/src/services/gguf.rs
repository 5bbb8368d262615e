//! A tiny language model in the file format of llama.cpp, for tests against a real server.
//!
//! Its weights are random, its tokens are the 256 bytes and the special tokens of a chat: it can
//! encode every text, a token is a byte, and the file is the same every time.

const WIDTH: usize = 64;
const LAYERS: usize = 2;
const HEADS: u32 = 4;
/// Width of the feed-forward layer.
const INNER: usize = 128;
const CONTEXT: u32 = 8192;

/// Special tokens; the bytes follow them.
const MARKS: [&str; 5] = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"];
const END: u32 = 4;
const VOCABULARY: usize = MARKS.len() + 256;

/// Chat template: each message between special tokens, then the start of the completion.
const TEMPLATE: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' }}\
    {% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Alignment of tensor data in bytes.
const ALIGNMENT: usize = 32;

/// Returns the content of the file.
pub(crate) fn tiny() -> Vec<u8> {
    let metadata = metadata();
    let tensors = tensors();
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend(long(tensors.len()));
    file.extend(long(metadata.len()));
    for (key, (kind, value)) in metadata {
        file.extend(text(key));
        file.extend(kind.to_le_bytes());
        file.extend(value);
    }
    let mut offset = 0;
    for tensor in &tensors {
        let dimensions: &[usize] =
            if tensor.rows == 1 { &[tensor.columns] } else { &[tensor.columns, tensor.rows] };
        file.extend(text(&tensor.name));
        file.extend((dimensions.len() as u32).to_le_bytes());
        file.extend(dimensions.iter().flat_map(|size| long(*size)));
        // Elements are `f32`.
        file.extend(0_u32.to_le_bytes());
        file.extend(long(offset));
        offset += (tensor.values.len() * 4).next_multiple_of(ALIGNMENT);
    }
    for tensor in &tensors {
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        file.extend(tensor.values.iter().flat_map(|value| value.to_le_bytes()));
    }
    file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
    file
}

fn long(number: usize) -> [u8; 8] {
    (number as u64).to_le_bytes()
}

fn text(text: &str) -> Vec<u8> {
    [&long(text.len())[..], text.as_bytes()].concat()
}

/// Number of a type in the file, and an encoded value.
type Value = (u32, Vec<u8>);

fn metadata() -> Vec<(&'static str, Value)> {
    let number = |number: u32| (4, number.to_le_bytes().to_vec());
    let size = |size: usize| number(u32::try_from(size).expect("a small number"));
    let string = |string: &str| (8, text(string));
    let disabled = || (7, vec![0]);
    let list = |kind: u32, items: Vec<u8>| {
        (9, [&kind.to_le_bytes()[..], &long(VOCABULARY), &items].concat())
    };
    let bytes = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>"));
    let tokens = MARKS.iter().map(ToString::to_string).chain(bytes);
    // Kinds of tokens: 2 is unknown, 3 special, 6 a byte.
    let kind = |token: usize| match token {
        0 => 2_i32,
        token if token < MARKS.len() => 3,
        _ => 6,
    };
    let kinds = (0..VOCABULARY).flat_map(|token| kind(token).to_le_bytes());
    vec![
        ("general.architecture", string("llama")),
        ("general.name", string("tiny")),
        ("llama.context_length", number(CONTEXT)),
        ("llama.embedding_length", size(WIDTH)),
        ("llama.block_count", size(LAYERS)),
        ("llama.feed_forward_length", size(INNER)),
        ("llama.attention.head_count", number(HEADS)),
        ("llama.attention.head_count_kv", number(HEADS)),
        ("llama.attention.layer_norm_rms_epsilon", (6, 1e-5_f32.to_le_bytes().to_vec())),
        ("llama.rope.dimension_count", size(WIDTH / HEADS as usize)),
        ("llama.vocab_size", size(VOCABULARY)),
        ("tokenizer.ggml.model", string("llama")),
        ("tokenizer.ggml.tokens", list(8, tokens.flat_map(|token| text(&token)).collect())),
        ("tokenizer.ggml.scores", list(6, vec![0; 4 * VOCABULARY])),
        ("tokenizer.ggml.token_type", list(5, kinds.collect())),
        ("tokenizer.ggml.unknown_token_id", number(0)),
        ("tokenizer.ggml.bos_token_id", number(1)),
        ("tokenizer.ggml.eos_token_id", number(END)),
        ("tokenizer.ggml.add_bos_token", disabled()),
        ("tokenizer.ggml.add_eos_token", disabled()),
        ("tokenizer.ggml.add_space_prefix", disabled()),
        ("tokenizer.chat_template", string(TEMPLATE)),
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

/// Every embedding has the same large first number, which no layer undoes. The head uses it to
/// separate allowed tokens from those that are never sampled.
fn embedding(random: &mut Random) -> GgufTensor {
    let mut tensor = matrix("token_embd.weight", WIDTH, VOCABULARY, random);
    for row in tensor.values.chunks_mut(WIDTH) {
        row.iter_mut().for_each(|value| *value *= 8.0);
        row[0] = 4.0;
    }
    tensor
}

/// Allows printable bytes and the end token. Other bytes need a request with `logit_bias`: the
/// server merges their text, which is tested separately.
fn head(random: &mut Random) -> GgufTensor {
    let mut tensor = matrix("output.weight", WIDTH, VOCABULARY, random);
    for (token, row) in tensor.values.chunks_mut(WIDTH).enumerate() {
        let byte = token.checked_sub(MARKS.len());
        let is_allowed =
            token == END as usize || byte.is_some_and(|byte| (32..127).contains(&byte));
        row[0] = if is_allowed { 1.0 } else { -4.0 };
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

/// Random numbers between -1 and 1, the same on every machine.
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
