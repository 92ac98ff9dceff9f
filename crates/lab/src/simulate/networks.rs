//! Networks as lists of layers, one list per part, which the built-in tables map to a device.

use super::roofline::Layer;

/// Words per sentence, and thus steps of recurrent models (LazyBatching section V).
pub(super) const WORDS: u64 = 20;

/// Parts of a bottleneck ResNet for images of 224 × 224 (the stem, each block, the classifier), given its number of
/// blocks at each width.
pub(super) fn resnet(blocks: [u64; 4]) -> Vec<Vec<Layer>> {
    let mut parts = vec![vec![Layer::convolution(112, 7, 3, 64)]];
    let mut inputs = 64;
    for (level, count) in (0_u32..).zip(blocks) {
        let (side, width) = (56 >> level, 64 << level);
        for block in 0..count {
            let mut part = vec![
                Layer::convolution(side, 1, inputs, width),
                Layer::convolution(side, 3, width, width),
                Layer::convolution(side, 1, width, 4 * width),
            ];
            if block == 0 {
                part.push(Layer::convolution(side, 1, inputs, 4 * width));
            }
            parts.push(part);
            inputs = 4 * width;
        }
    }
    parts.push(vec![Layer::dense(1, 2048, 1000)]);
    parts
}

/// VGG for images of 224 × 224: one part per convolution, given their number at each width, and the three dense layers.
pub(super) fn vgg(convolutions: [usize; 5]) -> Vec<Vec<Layer>> {
    let mut parts = Vec::new();
    let mut inputs = 3;
    for ((side, outputs), count) in
        [(224, 64), (112, 128), (56, 256), (28, 512), (14, 512)].into_iter().zip(convolutions)
    {
        for _ in 0..count {
            parts.push(vec![Layer::convolution(side, 3, inputs, outputs)]);
            inputs = outputs;
        }
    }
    parts.push([(25_088, 4096), (4096, 4096), (4096, 1000)].map(|(k, n)| Layer::dense(1, k, n)).to_vec());
    parts
}

/// MobileNet v1 for images of 224 × 224: the stem, thirteen blocks of a depthwise and a pointwise convolution, and the
/// classifier.
pub(super) fn mobilenet() -> Vec<Vec<Layer>> {
    let mut parts = vec![vec![Layer::convolution(112, 3, 3, 32)]];
    let mut inputs = 32;
    let blocks = [(112, 64), (56, 128), (56, 128), (28, 256), (28, 256), (14, 512)];
    for (side, outputs) in blocks.into_iter().chain([(14, 512); 5]).chain([(7, 1024); 2]) {
        parts.push(vec![Layer::depthwise(side, 3, inputs), Layer::convolution(side, 1, inputs, outputs)]);
        inputs = outputs;
    }
    parts.push(vec![Layer::dense(1, 1024, 1000)]);
    parts
}

/// U-Net for images of 256 × 256: five levels down and four up, with two convolutions each.
pub(super) fn unet() -> Vec<Vec<Layer>> {
    let mut parts = Vec::new();
    let mut inputs = 3;
    for level in 0..5 {
        let (side, width) = (256 >> level, 64 << level);
        parts.push(vec![Layer::convolution(side, 3, inputs, width), Layer::convolution(side, 3, width, width)]);
        inputs = width;
    }
    for level in (0..4).rev() {
        let (side, width) = (256 >> level, 64 << level);
        parts.push(vec![
            Layer::convolution(side / 2, 2, 2 * width, 2 * width),
            Layer::convolution(side, 3, 2 * width, width),
            Layer::convolution(side, 3, width, width),
        ]);
    }
    parts.push(vec![Layer::convolution(256, 1, 64, 2)]);
    parts
}

/// LinkNet for images of 256 × 256: the encoder is ResNet-18's; each decoder block narrows to a quarter, upsamples and
/// widens.
pub(super) fn linknet() -> Vec<Vec<Layer>> {
    let mut parts = vec![vec![Layer::convolution(128, 7, 3, 64)]];
    let mut inputs = 64;
    for level in 0..4 {
        let (side, width) = (64 >> level, 64 << level);
        for _ in 0..2 {
            parts.push(vec![Layer::convolution(side, 3, inputs, width), Layer::convolution(side, 3, width, width)]);
            inputs = width;
        }
    }
    for level in (0..4).rev() {
        let (side, width) = (64_u64 >> level, 64 << level);
        let narrow = width / 4;
        let outputs = if level == 0 { 64 } else { width / 2 };
        parts.push(vec![
            Layer::convolution(side, 1, width, narrow),
            Layer::convolution(2 * side, 3, narrow, narrow),
            Layer::convolution(2 * side, 1, narrow, outputs),
        ]);
    }
    parts.push(vec![
        Layer::convolution(256, 3, 64, 32),
        Layer::convolution(256, 3, 32, 32),
        Layer::convolution(256, 2, 32, 2),
    ]);
    parts
}

/// One layer of a Transformer's encoder over `tokens` tokens.
pub(super) fn encoder_layer(tokens: u64, width: u64, heads: u64) -> Vec<Layer> {
    let head = width / heads;
    vec![
        Layer::dense(tokens, width, 3 * width),
        Layer::attention(heads, tokens, head, tokens),
        Layer::attention(heads, tokens, tokens, head),
        Layer::dense(tokens, width, width),
        Layer::dense(tokens, width, 4 * width),
        Layer::dense(tokens, 4 * width, width),
    ]
}

/// Eight LSTM layers of 1,024, each over the whole sentence. Their weights do not stay on the chip from one word to the
/// next.
pub(super) fn gnmt_encoder() -> Vec<Vec<Layer>> {
    vec![vec![Layer::dense(1, 2048, 4096); WORDS as usize]; 8]
}

/// A step of the eight LSTM layers: one word.
pub(super) fn gnmt_encoder_step() -> Vec<Layer> {
    vec![Layer::dense(1, 2048, 4096); 8]
}

/// Eight LSTM layers, attention over the sentence, and a projection to 32,000 words.
pub(super) fn gnmt_step() -> Vec<Layer> {
    let mut step = vec![Layer::dense(1, 2048, 4096); 8];
    step.extend([
        Layer::attention(1, 1, 1024, WORDS),
        Layer::attention(1, 1, WORDS, 1024),
        Layer::dense(1, 1024, 32_000),
    ]);
    step
}

/// Six layers of width 512 with 8 heads.
pub(super) fn transformer_encoder() -> Vec<Vec<Layer>> {
    vec![encoder_layer(WORDS, 512, 8); 6]
}

/// Six layers with attention to the words so far and to the sentence, and a projection to 32,000 words.
pub(super) fn transformer_step() -> Vec<Layer> {
    let layer = [
        Layer::dense(1, 512, 3 * 512),
        Layer::attention(8, 1, 64, WORDS),
        Layer::attention(8, 1, WORDS, 64),
        Layer::dense(1, 512, 512),
        Layer::dense(1, 512, 512),
        Layer::attention(8, 1, 64, WORDS),
        Layer::attention(8, 1, WORDS, 64),
        Layer::dense(1, 512, 512),
        Layer::dense(1, 512, 2048),
        Layer::dense(1, 2048, 512),
    ];
    let mut step: Vec<Layer> = layer.into_iter().cycle().take(6 * layer.len()).collect();
    step.push(Layer::dense(1, 512, 32_000));
    step
}

/// Listen, Attend and Spell's listener over 160 frames of 40 values: a bidirectional LSTM of 256, and three more that
/// each read their predecessor's outputs in pairs.
pub(super) fn las_encoder() -> Vec<Vec<Layer>> {
    let both_directions = |steps: usize, inputs: u64| vec![Layer::dense(1, inputs + 256, 4 * 256); 2 * steps];
    vec![both_directions(160, 40), both_directions(80, 1024), both_directions(40, 1024), both_directions(20, 1024)]
}

/// Listen, Attend and Spell's speller: two LSTM layers of 512, attention over the listener's 20 outputs, and a
/// projection to 30 characters.
pub(super) fn las_step() -> Vec<Layer> {
    vec![
        Layer::dense(1, 1024 + 512, 4 * 512),
        Layer::dense(1, 512 + 512, 4 * 512),
        Layer::attention(1, 1, 512, 20),
        Layer::attention(1, 1, 20, 512),
        Layer::dense(1, 1024, 30),
    ]
}
