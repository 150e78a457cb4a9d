import './styles/base.css'
import './styles/panes.css'
import './styles/episode.css'
import './styles/tokens.css'
import './styles/dashboard.css'

import { render } from 'preact'

import { App } from './App'
import { Embedded, embeddedReport } from './data/embedded'
import { Server } from './data/server'
import { listenToKeys } from './state/commands'
import { followAddress, go } from './state/place'
import { startPreferences } from './state/preferences'
import { SourceContext } from './state/source'

startPreferences()
followAddress()
listenToKeys()
const report = embeddedReport()
if (report?.rows.length === 0 && location.hash === '') go({ view: 'dashboard' }, { replace: true })
render(
  <SourceContext.Provider value={report ? new Embedded(report) : new Server()}>
    <App />
  </SourceContext.Provider>,
  document.getElementById('app')!,
)
