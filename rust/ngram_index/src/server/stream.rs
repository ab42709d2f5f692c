//! Searching request after request on one call.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::ready;
use futures_util::stream::{self, Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tonic::{Code, Status, Streaming};

use super::metrics::Call;
use super::service::Service;
use super::{until, v1};

/// Requests of one stream that are worked on at a time. No more are read while the client does not read its answers.
const IN_FLIGHT: usize = 16;

type Answer = Result<v1::SearchResponse, Status>;

/// The answers to a stream of requests, in order, up to the first error.
pub(super) struct Answers {
    answers: Pin<Box<dyn Stream<Item = Answer> + Send>>,
    call: Call,
    _permit: OwnedSemaphorePermit,
}

impl Answers {
    pub fn new(
        service: Service,
        requests: Streaming<v1::SearchRequest>,
        stopped: watch::Receiver<bool>,
        call: Call,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let in_flight = Arc::new(());
        let answers = requests
            .take_until(until(stopped.clone()))
            .map(move |request| {
                // A client that waits for each answer is served fastest right here; one that does not, by many threads.
                let alone = Arc::strong_count(&in_flight) == 1;
                let token = in_flight.clone();
                let begun = request.and_then(|request| service.begin_search(request, alone));
                async move {
                    let answer = begun?.answer().await;
                    drop(token);
                    answer
                }
            })
            .buffered(IN_FLIGHT);
        let farewell = stream::once(async move { *stopped.borrow() }).filter_map(|stopping| {
            let status = || Status::unavailable("the service is stopping; open the stream again elsewhere");
            ready(stopping.then(|| Err(status())))
        });
        Self {
            answers: Box::pin(answers.chain(farewell)),
            call,
            _permit: permit,
        }
    }
}

impl Stream for Answers {
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        let polled = self.answers.as_mut().poll_next(context);
        match &polled {
            Poll::Ready(None) => self.call.ended(Code::Ok),
            Poll::Ready(Some(Err(status))) => self.call.ended(status.code()),
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
        }
        polled
    }
}
