/** One episode: what it came to, and its faces. Chat and tokens share one place: the message at the top. */

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks'

import { Empty, Failure, Loading } from '../common/Notice'
import { Select } from '../common/Select'
import { EpisodeOutcome } from '../common/Status'
import { Tabs } from '../common/Tabs'
import type { Episode, Tokens } from '../data/types'
import { useCommands } from '../state/commands'
import { COLOURINGS, FACES, go, usePlace, type Colouring, type Face } from '../state/place'
import { useResource, useSame, type Resource } from '../state/resource'
import { useSource } from '../state/source'
import { callText, plainText } from '../text/content'
import { brief, duration, integer, number, signed } from '../text/format'
import { t } from '../text/translate'
import { BranchesFace } from './BranchesFace'
import { ChatFace } from './ChatFace'
import { CompareFace } from './CompareFace'
import { DetailsFace } from './DetailsFace'
import { LanesFace, speakers } from './LanesFace'
import type { FaceCommands } from './face'
import { firstHit, hitsOf, hitTimeline, useMarkedHits } from './hits'
import { TokensFace } from './TokensFace'

const SETTLED_MS = 250
/** Characters of an answer in the heading. */
const ANSWER = 160

/** `written` grows when something was written to the run's episodes: advantages are written after the episode. */
export function Interaction({ written }: { written: number }) {
  const source = useSource()
  const { run, id, face, ...place } = usePlace()
  const answer = useSame(useResource(id ? `episode ${run} ${id}` : null, () => source.episode(run ?? '', id)))
  const timeline = answer.data ? Math.min(place.timeline, Math.max(0, answer.data.timelines.length - 1)) : place.timeline
  /** Asked for beside the episode rather than after it. */
  const tokensKey = id && face === 'tokens' ? `tokens ${run} ${id} ${timeline}` : null
  const tokens = useSame(useResource(tokensKey, () => source.tokens(run ?? '', id, timeline)))
  useRenewed(written, answer, tokens)
  useCommands({
    t: () => go({ face: face === 'chat' ? 'tokens' : 'chat' }),
    ...Object.fromEntries(FACES.map((name, index) => [String(index + 1), () => go({ face: name })])),
  })
  return (
    <section class="pane interaction" aria-label={t('interaction')}>
      {id === '' ? (
        <Empty title={t('choose_episode')} hint={t('choose_episode_hint')} />
      ) : answer.error ? (
        <Failure error={answer.error} again={answer.again} />
      ) : answer.data ? (
        <Opened key={id} episode={answer.data} timeline={timeline} tokens={tokens} written={written} />
      ) : (
        <Loading />
      )}
    </section>
  )
}

/** Asks for what is on show again when it is another by now, which most of what is written to a run does not make it. */
function useRenewed(written: number, answer: Resource<Episode>, tokens: Resource<Tokens>): void {
  const source = useSource()
  const { run, id } = usePlace()
  const revision = useResource(id && written > 0 ? `revision ${run} ${id}` : null, () => source.revision(run ?? '', id))
  useEffect(() => revision.again(), [written])
  useEffect(() => {
    const { data: now, error } = revision
    if (now === null && error === null) return
    if (!answer.loading && answer.data?.revision !== now?.episode) answer.again()
    if (!tokens.loading && tokens.data?.revision !== now?.tokens) tokens.again()
  }, [revision.data, revision.error, answer.data, tokens.data])
}

interface OpenedProps {
  episode: Episode
  timeline: number
  tokens: Resource<Tokens>
  written: number
}

function Opened({ episode, timeline, tokens, written }: OpenedProps) {
  const place = usePlace()
  const commands = useRef<FaceCommands>(null)
  const area = useRef<HTMLDivElement>(null)
  const { onNode, current } = useTopMessage(place.node)
  const hits = useMemo(() => hitsOf(episode, place.text), [episode, place.text])
  const hit = useMemo(() => firstHit(episode, timeline, hits), [episode, timeline, hits])
  const shared = { episode, timeline, node: place.node >= 0 ? place.node : hit, onNode, current, commands }
  const { face } = place
  useMarkedHits(area, place.text)
  useLayoutEffect(() => {
    const isAtBeginning = place.timeline === 0 && place.node < 0 && place.token < 0
    if (isAtBeginning) go({ timeline: hitTimeline(episode, hits) }, { replace: true })
  }, [place.text])

  useCommands({
    n: () => commands.current?.step(1),
    p: () => commands.current?.step(-1),
    ']': () => go({ timeline: Math.min(timeline + 1, episode.timelines.length - 1), token: -1 }),
    '[': () => go({ timeline: Math.max(timeline - 1, 0), token: -1 }),
  })

  return (
    <>
      <Heading episode={episode} timeline={timeline} />
      <div ref={area} class={`face ${isOfOneAgent(episode) ? 'one-agent' : ''}`} role="tabpanel" aria-label={t(wordOf(face))}>
        {face === 'chat' && <ChatFace {...shared} />}
        {face === 'tokens' && <TokensFace {...shared} answer={tokens} />}
        {face === 'branches' && <BranchesFace episode={episode} />}
        {face === 'compare' && <CompareFace episode={episode} written={written} />}
        {face === 'details' && <DetailsFace episode={episode} />}
        {face === 'lanes' && <LanesFace episode={episode} />}
      </div>
    </>
  )
}

/** Then its name says nothing. */
function isOfOneAgent({ messages }: Episode): boolean {
  return new Set(messages.map(({ agent }) => agent)).size < 2
}

/** The agents have a face of their own where there are several. */
function facesOf(episode: Episode): Face[] {
  return FACES.filter((face) => face !== 'lanes' || speakers(episode).length > 1)
}

function Heading({ episode, timeline }: { episode: Episode; timeline: number }) {
  const { face, colour, run } = usePlace()
  const source = useSource()
  const { row, timelines } = episode
  const report = source.reportAddress(run ?? '', [row.episode_id])
  return (
    <header class="interaction-heading">
      <div class="heading-line">
        <button class="back narrow-only" onClick={() => go({ id: '' })}>
          ‹ {t('back')}
        </button>
        <h2 title={row.episode_id}>{row.question || row.task_id}</h2>
        <EpisodeOutcome status={row.status} />
        {report && (
          <a class="button end" href={report} download title={t('export_hint')}>
            {t('export')}
          </a>
        )}
      </div>
      <dl class="summary">
        <Fact name={t('task')} value={row.task_id} />
        <Fact name={t('step')} value={`${t(row.split)} ${row.step}`} />
        <Fact name={t('repeat')} value={row.attempt > 1 ? `#${row.repeat} · ${t('attempt', { n: row.attempt })}` : `#${row.repeat}`} />
        <Fact name={t('reward')} value={number(row.reward)} />
        <Fact name={t('advantage')} value={signed(row.advantage)} />
        <Fact name={t('tokens')} value={`${integer(row.n_tokens)} · ${integer(row.n_trained)} ${t('trained')}`} />
        <Fact name={t('turns')} value={integer(row.n_turns)} />
        <Fact name={t('seconds')} value={duration(row.seconds)} />
      </dl>
      <Answer episode={episode} timeline={timeline} />
      {row.error_text !== null && (
        <p class="error-line" role="note">
          {row.error_type !== null && !row.error_text.startsWith(row.error_type) && <strong>{row.error_type}: </strong>}
          {row.error_text}
        </p>
      )}
      <div class="heading-line">
        <Tabs label={t('face')} value={face} tabs={facesOf(episode).map((name) => [name, t(wordOf(name))])} onChange={(name) => go({ face: name })} />
        {timelines.length > 1 && !['branches', 'details', 'lanes'].includes(face) && (
          <Select
            label={t('timeline')}
            hideLabel
            value={String(timeline)}
            options={timelines.map(({ agent, n_tokens, n_trained }, index) => [
              String(index),
              t('timeline_n', { n: index + 1, all: timelines.length, agent, tokens: integer(n_tokens), trained: integer(n_trained) }),
            ])}
            onChange={(value) => go({ timeline: Number(value), token: -1 }, { replace: true })}
          />
        )}
        {face === 'tokens' && (
          <Select
            label={t('colour')}
            value={colour}
            options={COLOURINGS.map((name) => [name, t(`by_${name}`)])}
            onChange={(value) => go({ colour: value as Colouring }, { replace: true })}
          />
        )}
      </div>
    </header>
  )
}

/** What the agent came to, beside what it should have: an episode is judged by both. */
function Answer({ episode: { messages, timelines, reference }, timeline }: { episode: Episode; timeline: number }) {
  const path = timelines[timeline]?.path ?? []
  const last = messages.findLast(({ node, sampled }) => sampled && path.includes(node))
  const said = last && brief(plainText(last.content) || last.tool_calls.map(callText).join(' '), ANSWER)
  if (!said) return null
  return (
    <dl class="summary final">
      <Fact name={t('final_answer')} value={said} />
      {reference !== null && <Fact name={t('reference')} value={brief(typeof reference === 'string' ? reference : JSON.stringify(reference), ANSWER)} />}
    </dl>
  )
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  )
}

function wordOf(face: Face) {
  return face === 'branches' ? 'branches_face' : face
}

/** Takes the message at the top into the address once scrolling has come to rest. */
function useTopMessage(node: number): { onNode: (node: number) => void; current: () => number } {
  const waiting = useRef(0)
  const latest = useRef(node)
  useEffect(() => () => clearTimeout(waiting.current), [])
  const [shared] = useState({
    onNode: (top: number): void => {
      if (top === latest.current) return
      latest.current = top
      clearTimeout(waiting.current)
      waiting.current = window.setTimeout(() => go({ node: top }, { replace: true }), SETTLED_MS)
    },
    current: (): number => latest.current,
  })
  return shared
}
