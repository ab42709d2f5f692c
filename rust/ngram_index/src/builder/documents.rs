//! Checks of the documents that a caller gives.

use crate::error::{Error, Result};

/// Check that `offsets` cut `tokens` tokens into documents.
pub(super) fn check_offsets(tokens: usize, offsets: &[i64]) -> Result<()> {
    let invalid = |message: String| Err(Error::invalid("offsets", message));
    let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
        return invalid("must hold one more entry than documents, got none".to_owned());
    };
    if first != 0 || u64::try_from(last) != Ok(tokens as u64) {
        return invalid(format!(
            "must go from 0 to the number of tokens {tokens}, got {first} to {last}"
        ));
    }
    match offsets.windows(2).position(|pair| pair[0] > pair[1]) {
        Some(at) => invalid(format!(
            "must not decrease, got {} after {}",
            offsets[at + 1],
            offsets[at]
        )),
        None => Ok(()),
    }
}

/// Check that all ids are in the vocabulary.
pub(super) fn check_tokens<T: Copy + Into<u32>>(tokens: &[T], vocab_size: u64) -> Result<()> {
    match tokens.iter().position(|id| u64::from((*id).into()) >= vocab_size) {
        Some(at) => {
            let id: u32 = tokens[at].into();
            let message = format!("id {id} at position {at} is not below the vocabulary size {vocab_size}");
            Err(Error::invalid("tokens", message))
        }
        None => Ok(()),
    }
}
