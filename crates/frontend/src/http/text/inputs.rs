//! The texts of a request for vectors, as the clients of OpenAI and of text-embeddings-inference send them.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, SeqAccess, Visitor},
};

use super::item::Item;

/// What is wrong with a list of several kinds.
const MIXED: &str = "expected either numbers, or texts and lists of numbers";

/// One text or several, each as text or as its tokens. A list of numbers is one text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Inputs(pub(super) Vec<Item>);

impl<'de> Deserialize<'de> for Inputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(InputsVisitor)
    }
}

struct InputsVisitor;

impl<'de> Visitor<'de> for InputsVisitor {
    type Value = Inputs;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("inputs to be a text, a list of texts, or lists of tokens")
    }

    fn visit_str<E>(self, text: &str) -> Result<Inputs, E> {
        Ok(Inputs(vec![Item::Text(text.to_owned())]))
    }

    fn visit_string<E>(self, text: String) -> Result<Inputs, E> {
        Ok(Inputs(vec![Item::Text(text)]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Inputs, A::Error> {
        let (mut items, mut tokens) = (Vec::new(), Vec::new());
        while let Some(element) =
            list.next_element_seed(After { items: !items.is_empty(), tokens: !tokens.is_empty() })?
        {
            match element {
                Element::Item(item) => items.push(item),
                Element::Token(token) => tokens.push(token),
            }
        }
        if !tokens.is_empty() {
            items.push(Item::Tokens(tokens));
        }
        Ok(Inputs(items))
    }
}

/// A text, or a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Listed<T> {
    Text(String),
    List(Vec<T>),
}

impl<T> Default for Listed<T> {
    /// None.
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Listed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListedVisitor(PhantomData))
    }
}

struct ListedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListedVisitor<T> {
    type Value = Listed<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string or a list")
    }

    fn visit_str<E>(self, text: &str) -> Result<Listed<T>, E> {
        Ok(Listed::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Listed<T>, A::Error> {
        let mut read = Vec::new();
        while let Some(element) = list.next_element()? {
            read.push(element);
        }
        Ok(Listed::List(read))
    }
}

/// An element of a list.
enum Element {
    Item(Item),
    Token(i64),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

/// Whether a list has had items or tokens so far, which the next element must go with.
struct After {
    items: bool,
    tokens: bool,
}

impl<'de> DeserializeSeed<'de> for After {
    type Value = Element;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Element, D::Error> {
        match Element::deserialize(deserializer)? {
            Element::Item(_) if self.tokens => Err(de::Error::custom(MIXED)),
            Element::Token(_) if self.items => Err(de::Error::custom(MIXED)),
            element => Ok(element),
        }
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text or tokens")
    }

    fn visit_str<E>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Item(Item::Text(text.to_owned())))
    }

    fn visit_string<E>(self, text: String) -> Result<Element, E> {
        Ok(Element::Item(Item::Text(text)))
    }

    fn visit_i64<E>(self, token: i64) -> Result<Element, E> {
        Ok(Element::Token(token))
    }

    fn visit_u64<E: de::Error>(self, token: u64) -> Result<Element, E> {
        let large = |_| E::invalid_value(de::Unexpected::Unsigned(token), &self);
        i64::try_from(token).map(Element::Token).map_err(large)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
        let mut tokens = Vec::new();
        while let Some(token) = list.next_element()? {
            tokens.push(token);
        }
        Ok(Element::Item(Item::Tokens(tokens)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Asked {
        input: Inputs,
    }

    fn read(json: &str) -> Result<Vec<Item>, String> {
        let read = super::super::read::read::<Asked>(format!("{{\"input\": {json}}}").as_bytes());
        read.map(|Asked { input: Inputs(items) }| items).map_err(|fault| fault.message().to_owned())
    }

    #[test]
    fn a_list_may_have_texts_and_tokens() {
        let (text, tokens) = (Item::Text("a".to_owned()), Item::Tokens(vec![1, -2]));
        assert_eq!(read(r#""a""#), Ok(vec![text.clone()]));
        assert_eq!(read("[1, -2]"), Ok(vec![tokens.clone()]));
        assert_eq!(read(r#"["\u0061", [1, -2], "a"]"#), Ok(vec![text.clone(), tokens.clone(), text]));
        assert_eq!(read("[[1, -2], [1, -2]]"), Ok(vec![tokens.clone(), tokens]));
        assert_eq!(read("[[]]"), Ok(vec![Item::Tokens(Vec::new())]));
        assert_eq!(read("[]"), Ok(Vec::new()));
    }

    #[test]
    fn what_is_no_text_is_named_by_its_number() {
        let refused = |json: &str| read(json).expect_err(json);
        let null = refused(r#"["a", null]"#);
        assert_eq!(null, "input[1]: invalid type: null, expected a text or tokens at line 1 column 20");
        assert!(refused(r#"["a", "b", 1]"#).starts_with("input[2]: expected either numbers, or texts"));
        assert!(refused("[1, 2.5]").starts_with("input[1]: invalid type: floating point"));
        assert!(refused(r#"["a", ["b"]]"#).starts_with("input[1][0]: invalid type: string"));
        assert!(refused("[18446744073709551615]").starts_with("input[0]: invalid value"));
        assert!(refused("{}").contains("expected inputs to be a text, a list of texts, or lists of tokens"));
    }
}
