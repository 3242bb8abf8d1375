//! `tokenizer.json`, `tokenizer_config.json`, `generation_config.json`, `chat_template.jinja`, `special_tokens_map.json` and
//! `added_tokens.json`. An empty first file is replaced by one that works.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use spattn::model::config::ModelConfig;
use spattn::model::texts::{ModelTexts, TextFile};
use spattn::model::tokenizer::{Tokenizer, TokenizerOptions};
use spattn_fuzz::{files, read_usage};

const CONFIG: &str = include_str!("../../tests/golden/models/llama3/config.json");
const SMALL: &str = include_str!("../small-tokenizer.json");

fuzz_target!(|input: &[u8]| -> Corpus {
    let Ok(texts) = files(input).into_iter().map(std::str::from_utf8).collect::<Result<Vec<_>, _>>() else {
        return Corpus::Reject;
    };
    let file = |at: usize, name: &str| {
        let text = texts.get(at).filter(|text| !text.is_empty())?;
        Some(TextFile { name: name.to_owned(), text: (*text).to_owned().into() })
    };
    let texts = ModelTexts {
        id: "model".to_owned(),
        revision: None,
        config: TextFile { name: "config.json".to_owned(), text: CONFIG.into() },
        tokenizer: file(0, "tokenizer.json")
            .unwrap_or(TextFile { name: "tokenizer.json".to_owned(), text: SMALL.into() }),
        tokenizer_config: file(1, "tokenizer_config.json"),
        generation_config: file(2, "generation_config.json"),
        chat_template: file(3, "chat_template.jinja"),
        special_tokens: file(4, "special_tokens_map.json"),
        added_tokens: file(5, "added_tokens.json"),
        notes: Vec::new(),
    };
    let config = ModelConfig::parse(CONFIG, "config.json").expect("a config that works");
    if let Some(tokenizer) = read_usage(Tokenizer::load(&texts, &config, TokenizerOptions::default())) {
        encode(&tokenizer);
    }
    Corpus::Keep
});

fn encode(tokenizer: &Tokenizer) {
    for (user, prefix) in [("a b\nWhat is a?", " It is"), ("  ", ""), ("é\u{1F600} <s>\0", "x")] {
        if let Some(prompt) = read_usage(tokenizer.encode_prompt(user, prefix)) {
            assert_eq!(prompt.ids.len(), prompt.offsets.len());
            assert!(prompt.token_of_user_byte(user.len()) <= prompt.ids.len());
            let _ = read_usage(tokenizer.decode(&prompt.ids));
            assert_eq!(read_usage(tokenizer.count_prompt(user, prefix)), Some(prompt.ids.len()));
        }
        let _ = (read_usage(tokenizer.encode_plain(user, prefix)), read_usage(tokenizer.encode_with_ends(user)));
    }
    let _ = (tokenizer.bos_id(), tokenizer.eos_ids(), tokenizer.vocab_size(), tokenizer.has_chat());
}
