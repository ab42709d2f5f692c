//! Which offers of a stream are answered here, and the messages that answer them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::searcher::Searcher;
use crate::server::v1;

/// Tokens before the proposals that a search looks at: order - 1 of the longest index, order 5.
const CONTEXT_TOKENS: usize = 4;

/// Where offers are searched, how, and how long an answer may take.
#[derive(Clone)]
pub(super) struct Route {
    pub searcher: Arc<Searcher>,
    request: v1::SearchRequest,
    pub timeout: Duration,
}

impl Route {
    /// `request` has everything but the queries.
    pub fn new(searcher: Arc<Searcher>, request: v1::SearchRequest, timeout: Duration) -> Self {
        Self {
            searcher,
            request,
            timeout,
        }
    }

    /// A request for trees of at most so many nodes; 0: as many as the route says.
    fn request(&self, nodes: u32) -> v1::SearchRequest {
        let mut request = self.request.clone();
        if let Some(params) = request.params.as_mut().filter(|_| nodes > 0) {
            let fewer = |most: Option<u32>| most.map(|most| most.min(nodes));
            params.node_budget = fewer(params.node_budget);
            // A tree of few nodes needs no wider beam.
            params.beam_width = fewer(params.beam_width);
        }
        request
    }
}

/// Sessions of a stream, and what may be done for them.
#[derive(Default)]
pub(super) struct Desk {
    pub route: Option<Route>,
    sessions: HashMap<u64, Followed>,
}

struct Followed {
    context: Vec<u32>,
    allowed: u32,
}

/// Offers that are searched together: a request, and session and n of each of its queries.
pub(super) struct Batch {
    pub request: v1::SearchRequest,
    pub offers: Vec<(u64, u64)>,
}

impl Desk {
    pub fn follow(&mut self, session: u64, context: Vec<u32>) {
        let mut followed = Followed { context, allowed: 0 };
        followed.extend(&[]);
        self.sessions.insert(session, followed);
    }

    pub fn allow(&mut self, session: u64, offers: u32) {
        if let Some(followed) = self.sessions.get_mut(&session) {
            followed.allowed = offers;
        }
    }

    pub fn forget(&mut self, session: u64) {
        self.sessions.remove(&session);
    }

    /// Take note of a message's rounds; the offers in it that are to be answered.
    pub fn hear(&mut self, message: v1::RoundsResponse) -> Vec<Batch> {
        let mut batches = BTreeMap::<u32, Batch>::new();
        for event in message.events {
            let Some(followed) = self.sessions.get_mut(&event.session) else {
                continue;
            };
            let Some(v1::event::Kind::Round(round)) = event.kind else {
                continue;
            };
            followed.extend(&round.token_ids);
            if round.proposals.is_none() || followed.allowed == 0 {
                continue;
            }
            let Some(route) = &self.route else {
                continue;
            };
            followed.allowed -= 1;
            let batch = batches.entry(round.search_nodes).or_insert_with(|| Batch {
                request: route.request(round.search_nodes),
                offers: Vec::new(),
            });
            batch.offers.push((event.session, round.n));
            batch.request.queries.push(v1::SearchQuery {
                context: followed.context.clone(),
                proposals: round.proposals,
            });
        }
        batches.into_values().collect()
    }

    /// The commands that have the trees verified; nothing for sessions that ended meanwhile.
    pub fn commands(&self, offers: &[(u64, u64)], trees: Vec<v1::Tree>) -> v1::RoundsRequest {
        let here = offers.iter().zip(trees).filter(|((session, _), _)| self.sessions.contains_key(session));
        let commands = here.map(|(&(session, n), tree)| v1::Command {
            session,
            kind: Some(v1::command::Kind::Verify(v1::VerifyCommand {
                n,
                draft_after: true,
                candidates: Some(v1::verify_command::Candidates::Tree(tree)),
            })),
        });
        v1::RoundsRequest {
            hello: None,
            commands: commands.collect(),
        }
    }
}

impl Followed {
    fn extend(&mut self, tokens: &[u32]) {
        self.context.extend(tokens);
        self.context.drain(..self.context.len().saturating_sub(CONTEXT_TOKENS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(runtime: &tokio::runtime::Runtime) -> Route {
        let endpoint = tonic::transport::Endpoint::from_static("http://127.0.0.1:1");
        let params = v1::SearchParams {
            node_budget: Some(59),
            beam_width: Some(20),
            ..Default::default()
        };
        let request = v1::SearchRequest {
            tokenizer_fingerprint: "t".to_owned(),
            params: Some(params),
            queries: Vec::new(),
        };
        let searcher = Arc::new(Searcher::new(endpoint, runtime.handle().clone()));
        Route::new(searcher, request, Duration::from_secs(1))
    }

    fn offer(session: u64, n: u64, tokens: &[u32], search_nodes: u32) -> v1::Event {
        let round = v1::RoundEvent {
            n,
            token_ids: tokens.to_vec(),
            proposals: Some(v1::Proposals::default()),
            search_nodes,
            ..Default::default()
        };
        v1::Event {
            session,
            kind: Some(v1::event::Kind::Round(round)),
        }
    }

    fn message(events: Vec<v1::Event>) -> v1::RoundsResponse {
        v1::RoundsResponse {
            events,
            ..Default::default()
        }
    }

    fn contexts(batch: &Batch) -> Vec<Vec<u32>> {
        batch.request.queries.iter().map(|query| query.context.clone()).collect()
    }

    #[test]
    fn offers_of_equal_width_are_searched_together() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut desk = Desk {
            route: Some(route(&runtime)),
            ..Desk::default()
        };
        for session in 1..=4 {
            desk.follow(session, vec![10, 11, 12, 13, 14]);
            desk.allow(session, u32::from(session != 3));
        }
        let events = vec![
            offer(1, 6, &[1], 0),
            offer(2, 7, &[2, 3], 12),
            offer(3, 8, &[4], 0),
            offer(4, 9, &[5, 6, 7, 8, 9], 0),
            offer(5, 1, &[1], 0),
        ];
        let batches = desk.hear(message(events));
        let offers: Vec<_> = batches.iter().map(|batch| batch.offers.clone()).collect();
        assert_eq!(offers, [vec![(1, 6), (4, 9)], vec![(2, 7)]]);
        assert_eq!(contexts(&batches[0]), [[12, 13, 14, 1], [6, 7, 8, 9]]);
        assert_eq!(contexts(&batches[1]), [[13, 14, 2, 3]]);
        let width = |batch: &Batch| batch.request.params.as_ref().map(|params| (params.node_budget, params.beam_width));
        assert_eq!(width(&batches[0]), Some((Some(59), Some(20))));
        assert_eq!(width(&batches[1]), Some((Some(12), Some(12))));
        // What was allowed is used up, but the tokens still count.
        assert!(desk.hear(message(vec![offer(1, 7, &[2], 0)])).is_empty());
        desk.allow(1, 1);
        let later = desk.hear(message(vec![offer(1, 8, &[3], 0)]));
        assert_eq!(contexts(&later[0]), [[14, 1, 2, 3]]);
    }

    #[test]
    fn without_a_route_nothing_is_answered_and_nothing_used_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut desk = Desk::default();
        desk.follow(1, vec![1]);
        desk.allow(1, 1);
        assert!(desk.hear(message(vec![offer(1, 1, &[2], 0)])).is_empty());
        desk.route = Some(route(&runtime));
        assert_eq!(desk.hear(message(vec![offer(1, 2, &[3], 0)])).len(), 1);
    }

    #[test]
    fn trees_go_to_the_sessions_that_are_left() {
        let mut desk = Desk::default();
        for session in 1..=3 {
            desk.follow(session, vec![1]);
        }
        desk.forget(2);
        let tree = |byte: u8| v1::Tree {
            token_ids: vec![byte; 4],
            ..Default::default()
        };
        let verify = |session, n, byte| v1::Command {
            session,
            kind: Some(v1::command::Kind::Verify(v1::VerifyCommand {
                n,
                draft_after: true,
                candidates: Some(v1::verify_command::Candidates::Tree(tree(byte))),
            })),
        };
        let request = desk.commands(&[(1, 10), (2, 20), (3, 30)], vec![tree(1), tree(2), tree(3)]);
        assert_eq!(request.commands, [verify(1, 10, 1), verify(3, 30, 3)]);
    }
}
